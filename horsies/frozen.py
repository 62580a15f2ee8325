"""A `dataclass` whose frozen instances refuse every assignment with `FrozenInstanceError`.

The one of the standard library refuses a name that is no field with `TypeError: super(type, obj): obj must be an instance …`, if
the class has slots.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses

    def dataclass(cls=None, /, *, frozen=False, **options):
        """Return the class as a dataclass, as `dataclasses.dataclass` does.

        >>> @dataclass(frozen=True, slots=True)
        ... class Point:
        ...     x: int
        >>> Point(1).y = 2
        Traceback (most recent call last):
        dataclasses.FrozenInstanceError: cannot assign to 'y' of a frozen Point; dataclasses.replace(…) makes a changed copy
        """

        def decorate(cls):
            made = dataclasses.dataclass(cls, frozen=frozen, **options)
            return _freeze(made) if frozen else made

        return decorate if cls is None else decorate(cls)

    def _freeze(made):
        names = {field.name for field in dataclasses.fields(made)}

        def refuse(self, action, name):
            if type(self) is made or name in names:
                raise dataclasses.FrozenInstanceError(
                    f"cannot {action} {name!r} of a frozen {made.__name__}; "
                    "dataclasses.replace(…) makes a changed copy"
                )

        def __setattr__(self, name, value):  # noqa: N807
            refuse(self, "assign to", name)
            super(made, self).__setattr__(name, value)

        def __delattr__(self, name):  # noqa: N807
            refuse(self, "delete", name)
            super(made, self).__delattr__(name)

        made.__setattr__, made.__delattr__ = __setattr__, __delattr__
        return made
