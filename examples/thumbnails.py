"""CPU-bound work: make pictures smaller in parallel processes, without any library.

$ python examples/thumbnails.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from running import worker

from horsies import Horsies, TaskError, TaskResult

app = Horsies()


@app.task("pictures.shrink", timeout_ms=60_000, idempotent=True)
def shrink(source: str, target: str, factor: int) -> TaskResult[tuple[int, int], TaskError]:
    """Average squares of pixels. The task is idempotent, so it runs again if its worker dies."""
    _kind, width, height, _depth, pixels = read_ppm(Path(source))
    small_width, small_height = width // factor, height // factor
    small = bytearray()
    for top in range(0, small_height * factor, factor):
        for left in range(0, small_width * factor, factor):
            offsets = [3 * ((top + y) * width + left + x) for y in range(factor) for x in range(factor)]
            for channel in range(3):
                small.append(sum(pixels[offset + channel] for offset in offsets) // len(offsets))
    Path(target).write_bytes(b"P6 %d %d 255\n" % (small_width, small_height) + small)
    return TaskResult(ok=(small_width, small_height))


def read_ppm(path: Path) -> tuple[bytes, int, int, int, bytes]:
    header, _, pixels = path.read_bytes().partition(b"\n")
    kind, width, height, depth = header.split()
    return kind, int(width), int(height), int(depth), pixels


def draw(path: Path, number: int, size: int = 160) -> None:
    """Write a picture to shrink."""
    pixels = bytes((x * number) % 256 for _y in range(size) for x in range(size) for _channel in range(3))
    path.write_bytes(b"P6 %d %d 255\n" % (size, size) + pixels)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, worker(__file__):
        pictures = [Path(folder, f"{number}.ppm") for number in range(1, 5)]
        for number, picture in enumerate(pictures, 1):
            draw(picture, number)
        calls = [(str(picture), str(picture.with_suffix(".small.ppm")), 4) for picture in pictures]
        for handle, (_, target, _) in zip(shrink.send_many(calls).unwrap(), calls, strict=True):
            width, height = handle.get(timeout_ms=60_000).unwrap()
            print(f"{width} x {height}, {Path(target).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
