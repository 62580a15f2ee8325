"""Errors name the value, the place and the remedy, and never a password."""

import copy
import linecache
import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import horsies.core.errors
from horsies import errors
from horsies.errors import (
    ConfigurationError,
    DatabaseError,
    EmbeddedError,
    ErrorCode,
    HorsiesError,
    MultipleValidationErrors,
    RegistryError,
    SettingsReport,
    SourceLocation,
    TaskDefinitionError,
    ValidationReport,
    WorkflowContextMissingIdError,
    WorkflowValidationError,
    bounded,
    caller_location,
    is_whole_number,
    mask_passwords,
    masked_repr,
    use_color,
)


@pytest.fixture
def source() -> SourceLocation:
    """A place whose source line is known and holds a password."""
    name = "<a file of the user>"
    line = '    broker = connect("postgresql://ann:s3cret@db/app")\n'
    linecache.cache[name] = (len(line), None, [line], name)
    return SourceLocation(name, 1)


def refused(location: SourceLocation) -> ConfigurationError:
    return ConfigurationError(
        "queue 'mail' is not configured",
        code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
        location=location,
        notes=["configured: bulk", "configured: urgent"],
        help_text="add CustomQueueConfig(name='mail')",
    )


def test_an_error_reads_like_a_compiler_message(source: SourceLocation):
    assert str(refused(source)).splitlines() == [
        "error[HRS-200]: queue 'mail' is not configured",
        "  --> <a file of the user>:1",
        "  |",
        '1 | broker = connect("postgresql://ann:***@db/app")',
        "  | " + "^" * 47,
        "   = note: configured: bulk",
        "   = note: configured: urgent",
        "   = help: add CustomQueueConfig(name='mail')",
    ]


def test_an_error_whose_source_cannot_be_read_still_names_its_place():
    error = refused(SourceLocation("gone.py", 12))

    assert "  --> gone.py:12\n   = note" in str(error)


def test_an_error_without_a_code_has_no_brackets():
    assert str(HorsiesError("out of ideas")).startswith("error: out of ideas\n")


def test_colour_changes_nothing_but_the_colour(source: SourceLocation):
    painted = refused(source).render(color=True)

    assert "\x1b[" in painted
    assert "\x1b[" not in str(refused(source))
    plain = painted
    for style in ("1", "1;31", "1;34", "1;36", "0"):
        plain = plain.replace(f"\x1b[{style}m", "")
    assert plain == str(refused(source))


def test_the_location_is_the_line_of_the_caller():
    expected = caller_location()
    error = HorsiesError("here")

    assert expected is not None
    assert error.location == SourceLocation(__file__, expected.line + 1)


def location_seen_by(*modules: str) -> SourceLocation | None:
    """The location when these modules, the outermost first, call each other and the last one looks."""
    found: list[SourceLocation | None] = []
    scope: dict[str, object] = {"found": found, "look": caller_location}
    statement = "found.append(look())"
    for module in reversed(modules):
        scope["__name__"] = module
        code = compile(statement, f"<{module}>", "exec")
        scope, statement = {"code": code, "scope": scope}, "exec(code, scope)"
    exec(scope["code"], scope["scope"])  # pyright: ignore[reportArgumentType]
    return found[0]


@pytest.mark.parametrize(
    "between",
    [
        ["horsies.app"],
        ["horsies"],
        ["horsies.app", "dataclasses", "horsies.config"],
        ["asyncio.events", "horsies.app"],
    ],
)
def test_frames_of_the_package_and_the_standard_library_are_passed_over(between: list[str]):
    assert location_seen_by("user_app", *between) == SourceLocation("<user_app>", 1)


def test_a_module_that_only_sounds_like_the_package_is_user_code():
    assert location_seen_by("horsies_shop", "horsies.app") == SourceLocation("<horsies_shop>", 1)


def test_a_command_line_has_no_source_line_to_blame():
    assert location_seen_by("__main__", "click.core", "horsies.cli.services", "horsies.app") is None


def test_user_code_imported_by_a_command_is_to_blame():
    found = location_seen_by("__main__", "horsies.cli.diagnose", "importlib", "user_app", "horsies.config")

    assert found == SourceLocation("<user_app>", 1)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://ann:s3cret@db/app", "postgresql://ann:***@db/app"),
        ("postgresql://ann:a@b:c/d e@db/app", "postgresql://ann:***@db/app"),
        ("postgresql://ann@corp:s3cret@db/app", "postgresql://ann@corp:***@db/app"),
        ("postgresql://:s3cret@db", "postgresql://:***@db"),
        ("postgresql://db/app?user=ann&password=s3cret&x=1", "postgresql://db/app?user=ann&password=***&x=1"),
        ("postgresql://db/app?sslpassword=s3cret", "postgresql://db/app?sslpassword=***"),
        ("host=db password='s 3 cret' user=ann", "host=db password=*** user=ann"),
        ("host=db PASSWORD = s3cret", "host=db PASSWORD = ***"),
        (r"host=db password='s3\'cr et' user=ann", "host=db password=*** user=ann"),
        (r"host=db password=s3\ cr\'et user=ann", "host=db password=*** user=ann"),
        ("postgresql://db/app?p%61ssword=s3cret&x=1", "postgresql://db/app?p%61ssword=***&x=1"),
        ("postgresql://db/app?oauth_client_secret=s3cret", "postgresql://db/app?oauth_client_secret=***"),
        ("host=db scram_client_key=s3cret", "host=db scram_client_key=***"),
        ("{'user': 'ann', 'password': 's3cret'}", "{'user': 'ann', 'password': ***}"),
        ("PGPASSWORD=s3cret", "PGPASSWORD=***"),
        ("postgresql://ann:s3cret/app", "postgresql://ann:***/app"),
        ("postgresql://ann:1s3cret", "postgresql://ann:***"),
        ("postgresql://[::1]:5432/app", "postgresql://[::1]:5432/app"),
        ("postgresql://a:5432,b:5433/app", "postgresql://a:5432,b:5433/app"),
        ("postgresql://ann@db:5432/app", "postgresql://ann@db:5432/app"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_passwords_are_masked(text: str, masked: str):
    assert mask_passwords(text) == masked


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=4))
def test_no_password_of_a_url_survives_masking(password: str):
    secret = f"<{password}>"

    assert secret not in mask_passwords(f"postgresql://ann:{secret}@db/app")


def test_a_masked_repr_is_a_repr_without_passwords():
    @dataclass
    class Login:
        url: str
        port: int

    assert (
        masked_repr(Login("postgresql://ann:s3cret@db", 1)) == "Login(url='postgresql://ann:***@db', port=1)"
    )


@pytest.mark.parametrize(
    ("env", "isatty", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"HORSIES_FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"HORSIES_FORCE_COLOR": ""}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"NO_COLOR": "1", "HORSIES_FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour_needs_a_terminal_or_force_and_yields_to_no_color(env, isatty, expected):
    assert use_color(env, isatty) is expected


def test_a_report_without_errors_raises_nothing():
    ValidationReport("phase").raise_if_any()


def test_a_single_error_is_raised_as_itself():
    report, error = ValidationReport("phase"), TaskDefinitionError("no")
    report.add(error)

    with pytest.raises(TaskDefinitionError) as caught:
        report.raise_if_any()

    assert caught.value is error


def test_several_errors_are_raised_together():
    report = ValidationReport("phase")
    report.add(TaskDefinitionError("first"))
    report.add(ConfigurationError("second"))

    with pytest.raises(MultipleValidationErrors) as caught:
        report.raise_if_any()

    assert caught.value.errors == tuple(report.errors)
    text = str(caught.value)
    assert text.index("error: first") < text.index("error: second")
    assert text.endswith("aborting due to 2 previous errors")


@pytest.mark.parametrize("color", [False, True])
def test_errors_survive_pickling_and_copying(color: bool, source: SourceLocation):
    for error in (refused(source), MultipleValidationErrors([refused(source), refused(source)])):
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(twin) is type(error)
            assert twin.render(color) == error.render(color)


@pytest.mark.parametrize(
    "kind",
    [
        ConfigurationError,
        TaskDefinitionError,
        RegistryError,
        WorkflowValidationError,
        WorkflowContextMissingIdError,
        DatabaseError,
        EmbeddedError,
        MultipleValidationErrors,
    ],
)
def test_every_error_is_a_horsies_error(kind: type[Exception]):
    assert issubclass(kind, HorsiesError)


@pytest.mark.parametrize(
    ("first", "last"),
    [(1, 32), (100, 105), (200, 218), (300, 301), (401, 404), (410, 414)],
)
def test_the_codes_have_no_gaps_and_no_twins(first: int, last: int):
    for number in range(first, last + 1):
        assert ErrorCode(f"HRS-{number:03}").value == f"HRS-{number:03}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKFLOW_NO_NAME", "HRS-001"),
        ("WORKFLOW_INVALID_ID", "HRS-032"),
        ("TASK_INVALID_OPTIONS", "HRS-102"),
        ("BROKER_INVALID_URL", "HRS-203"),
        ("CLI_INVALID_ARGS", "HRS-206"),
        ("CONFIG_INVALID_EXCEPTION_MAPPER", "HRS-209"),
        ("CHECK_RESERVED_CODE_COLLISION", "HRS-212"),
        ("CONFIG_INVALID_WORKER", "HRS-217"),
        ("TASK_DUPLICATE_NAME", "HRS-301"),
        ("EMBEDDED_START_FAILED", "HRS-404"),
        ("EMBEDDED_ALTERED", "HRS-405"),
        ("DATABASE_REFUSED", "HRS-414"),
    ],
)
def test_codes_keep_their_names(name: str, value: str):
    assert ErrorCode[name] == value
    assert str(ErrorCode[name]) == value


@pytest.mark.parametrize("value", [1, 5, 10])
def test_whole_numbers_include_both_bounds(value: int):
    assert is_whole_number(value, 1, 10)


@pytest.mark.parametrize("value", [0, 11, True, 5.0, "5", None])
def test_anything_else_is_no_whole_number_in_bounds(value: object):
    assert not is_whole_number(value, 1, 10)


@dataclass(frozen=True)
class Sizes:
    small: int = bounded(1, 0, 5)
    large: int | None = bounded(None, 10, code=ErrorCode.CONFIG_INVALID_BROKER_POOL)
    kept: int | None = bounded(7, 1, or_none=True)


def test_settings_in_range_are_no_faults():
    report = SettingsReport(Sizes(small=5, large=None, kept=None), ErrorCode.CONFIG_INVALID_VALUE)

    assert report.errors == []
    assert report.in_range("small", "large", "kept")


def test_settings_out_of_range_are_named_with_value_bounds_and_code():
    report = SettingsReport(Sizes(small=6, large=9), ErrorCode.CONFIG_INVALID_VALUE)

    assert [(e.code, e.message, e.help_text) for e in report.errors] == [
        (ErrorCode.CONFIG_INVALID_VALUE, "Sizes: small is 6", "use a whole number from 0 to 5"),
        (
            ErrorCode.CONFIG_INVALID_BROKER_POOL,
            "Sizes: large is 9",
            "use a whole number of at least 10, or None",
        ),
    ]
    assert not report.in_range("small", "kept")
    assert report.in_range("kept")


def test_the_documented_path_leads_to_the_same_errors():
    offered = [name for name in vars(horsies.core.errors) if not name.startswith("_")]

    assert {"HorsiesError", "ConfigurationError", "TaskDefinitionError", "RegistryError", "ErrorCode"} <= set(
        offered
    )
    assert all(getattr(horsies.core.errors, name) is getattr(errors, name) for name in offered)
