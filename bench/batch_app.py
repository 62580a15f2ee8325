"""A task that runs in batches, in an app of its own: workers of other apps do not look for batches."""

from horsies import AppConfig, Horsies

batching = Horsies(AppConfig(claim_lease_ms=30_000))


@batching.task("batched_noop", batch=100)
def batched_noop(numbers: list[int]) -> list[int]:
    return numbers
