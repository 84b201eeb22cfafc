"""`NamedTuple` as in `typing`, whose classes are created in a tenth of the time.

A command creates 150 of them before it starts a task, and few ever have an instance. `typing` compiles a constructor
and the annotations of each; here a constructor is compiled for the first instance, and annotations stay text.
"""

from __future__ import annotations

__all__ = ["NamedTuple"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from _collections import _tuplegetter

    def _compile_constructor(cls: type, *values: Any, **named: Any) -> Any:
        """Return the first instance of a class, which has its constructor from then on."""
        record = next(each for each in cls.__mro__ if "_fields" in each.__dict__)
        names = "".join(f"{name}, " for name in record._fields)
        # A function gets parameters whose names are not known before in no other way; `collections` does the same.
        constructor = eval(f"lambda _cls, {names}: _new(_cls, ({names}))", {"_new": tuple.__new__})  # noqa: S307
        constructor.__defaults__ = tuple(record._field_defaults.values())
        constructor.__name__ = "__new__"
        record.__new__ = staticmethod(constructor)
        return constructor(cls, *values, **named)

    class _Creation(type):
        """Creates classes whose annotated names are the items of a tuple."""

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
            if bases != (tuple,) and not hasattr(bases[0], "_fields"):
                fields = tuple(namespace.get("__annotations__", ()))
                namespace["_fields"] = namespace["__match_args__"] = fields
                namespace["_field_defaults"] = {field: namespace[field] for field in fields if field in namespace}
                namespace["__slots__"], namespace["__new__"] = (), _compile_constructor
                for index, field in enumerate(fields):
                    namespace[field] = _tuplegetter(index, "")
            return super().__new__(cls, name, bases, namespace)

    class NamedTuple(tuple, metaclass=_Creation):
        """A tuple with names for its items: the annotations of a subclass, in order."""

        __slots__ = ()

        @classmethod
        def _make(cls, values: Any) -> Any:
            return cls(*values)

        def _replace(self, **changes: Any) -> Any:
            changed = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"got unexpected field names: {list(changes)!r}")
            return changed

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self))  # noqa: B905 - hosts may have Python 3.8

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"
