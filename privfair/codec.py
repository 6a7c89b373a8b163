"""One codec for whatever is sent or kept: messages, release plans, checkpoints, the state of a data holder.

A type is its own format: the annotations of a dataclass say what each field may hold, and pydantic checks all of it.
A value has three forms:

    text      JSON, with arrays as lists: release plans and schemas, whose digests are compared
    arrays    the JSON without its arrays and bytes, which stand beside it by name: files
    message   those arrays in the safetensors format; every field must be there, and nothing else may be

Whatever is read may come from somebody who is not trusted. Sizes are checked before anything is allocated, and whatever
is wrong is an `InputError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AllowInfNan, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, PydanticSerializationError, SchemaValidator, core_schema
from safetensors import SafetensorError
from safetensors.numpy import load, save

from accountant.errors import InputError

TREE = "about"  # the array that holds the JSON
MOST_HEADER = 2**20  # bytes of a message that are neither array nor bytes: the names of its arrays, and its JSON
MOST_TEXT = 2**26  # characters
# what bytes of no known form raise
WRONG = (KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)

_compact = json.JSONEncoder(separators=(",", ":")).encode

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]
Earlier = Callable[[Arrays], Arrays]


class _Beside:
    """The arrays beside a JSON tree while one value is written or read."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], *, lists: bool = True) -> None:
        self.arrays, self.lists, self.used = dict(arrays), lists, {TREE}
        self._names: dict[int, str] = {}  # by identity: what the parts of a value share is written once
        self._raw: dict[str, bytes] = {}

    def add(self, value: Any, array: NDArray[Any]) -> str:
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{len(self.arrays):06d}"
            self.arrays[name] = np.ascontiguousarray(array)
        return name

    def array(self, name: object) -> NDArray[Any]:
        if not isinstance(name, str) or name not in self.arrays:
            raise ValueError("no such array")
        self.used.add(name)
        return self.arrays[name]

    def raw(self, name: object) -> bytes:
        found = self.array(name)
        if found.dtype != np.uint8 or found.ndim != 1:
            raise ValueError("no bytes")
        if name not in self._raw:  # made once, however often a message names it
            self._raw[str(name)] = found.tobytes()
        return self._raw[str(name)]


class Array:
    """Annotates arrays: which types of numbers are accepted, and how many dimensions (None: any)."""

    def __init__(self, *dtypes: type, dimensions: int | None = None) -> None:
        """The first type is that of numbers in a text."""
        self._dtypes, self._dimensions = tuple(np.dtype(dtype) for dtype in dtypes), dimensions

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads and writes such a field."""
        write = core_schema.plain_serializer_function_ser_schema(self._write, info_arg=True)
        return core_schema.with_info_plain_validator_function(self._read, serialization=write)

    def _read(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        beside: _Beside = info.context  # type: ignore[assignment]
        found = self._listed(value) if isinstance(value, list) and beside.lists else beside.array(value)
        if found.dtype not in self._dtypes or self._dimensions not in (None, found.ndim):
            raise ValueError(f"must be {self._dtypes[0]} of {self._dimensions} dimensions")
        return found

    def _listed(self, value: list[Any]) -> NDArray[Any]:
        found, wanted = np.array(value), self._dtypes[0]
        if found.size and (found.dtype.kind not in "if" or not np.can_cast(found.dtype, wanted)):
            raise ValueError("must be numbers")
        if not np.isfinite(found).all():
            raise ValueError("must be finite")
        return found.astype(wanted)

    def _write(self, value: Any, info: core_schema.SerializationInfo) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype not in self._dtypes:
            raise ValueError(f"must be an array of {self._dtypes[0]}, not {getattr(value, 'dtype', type(value))}")
        return value.tolist() if info.mode == "json" else info.context.add(value, value)  # type: ignore[union-attr]


class _Bytes(Array):
    """Annotates bytes that stand beside the JSON."""

    def _read(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        return info.context.raw(value)  # type: ignore[union-attr]

    def _write(self, value: Any, info: core_schema.SerializationInfo) -> Any:
        return info.context.add(value, np.frombuffer(value, dtype=np.uint8))  # type: ignore[union-attr]


class _Whole(Array):
    """Annotates a whole number that stands beside the JSON: the length of a message must not depend on its digits."""

    def _read(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        found = info.context.array(value)  # type: ignore[union-attr]
        if found.dtype != np.int64 or found.shape != (1,):
            raise ValueError("no whole number")
        return int(found[0])

    def _write(self, value: Any, info: core_schema.SerializationInfo) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not -(2**63) <= value < 2**63:
            raise ValueError(f"must be a whole number of 64 bits, not {type(value)}")
        return info.context.add(value, np.array([value], dtype=np.int64))  # type: ignore[union-attr]


# float64 in practice; numpy's own polynomial functions promise no more
FloatArray = Annotated[NDArray[np.floating[Any]], Array(np.float64, np.float32)]
FloatVector = Annotated[NDArray[np.floating[Any]], Array(np.float64, np.float32, dimensions=1)]
FloatMatrix = Annotated[NDArray[np.floating[Any]], Array(np.float64, np.float32, dimensions=2)]
IntArray = Annotated[NDArray[np.int64], Array(np.int64)]
IntVector = Annotated[NDArray[np.int64], Array(np.int64, dimensions=1)]
IntMatrix = Annotated[NDArray[np.int64], Array(np.int64, dimensions=2)]
# what an object remembers: mostly floats, and some counters
Remembered = Annotated[
    NDArray[np.floating[Any]], Array(np.float64, np.float32, np.int64, np.uint64, np.uint8, np.bool_)
]
Payload = Annotated[bytes, _Bytes(np.uint8)]
Whole = Annotated[int, _Whole(np.int64)]  # of a fixed length, whatever its value
Bound = Annotated[float, AllowInfNan(True), Field(ge=0)]  # a bound may be infinite, and is a number


class Tagged:
    """Annotates a union of dataclasses: a value is written as {name of its class: its fields}."""

    def __init__(self, *kinds: type) -> None:
        """`kinds`: those that can be written; none given: all of the union."""
        self._kinds = kinds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads and writes such a field."""
        kinds = {kind.__name__: handler.generate_schema(kind) for kind in self._kinds or get_args(source)}
        fields = {name: core_schema.typed_dict_field(schema, required=False) for name, schema in kinds.items()}
        one = core_schema.typed_dict_schema(fields, extra_behavior="forbid")

        def read(found: dict[str, Any]) -> Any:
            if len(found) != 1:
                raise ValueError("must be of one kind")
            return next(iter(found.values()))

        def write(value: Any, inner: Callable[[Any], Any]) -> Any:
            if type(value).__name__ not in kinds:
                raise ValueError(f"must be of a known kind, not {type(value).__name__}")
            return inner({type(value).__name__: value})

        written = core_schema.wrap_serializer_function_ser_schema(write, schema=one)
        return core_schema.no_info_after_validator_function(read, one, serialization=written)


class Codec(Generic[T]):
    """Writes and reads values of one type."""

    def __init__(
        self,
        kind: Any,
        name: str,
        *,
        what: str = "message",
        finite: bool = True,
        earlier: Earlier = lambda arrays: arrays,
    ) -> None:
        """`name`: what such a value is called, and `what`, what holds it. `finite`: NaN and infinity are refused.

        `earlier`: turns the arrays of an earlier format into today's, and leaves today's as they are.
        """
        self._kind, self._name, self._what, self._finite, self._earlier = kind, name, what, finite, earlier

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=not self._finite, ser_json_inf_nan="constants")
        return TypeAdapter(self._kind | None, config=config)  # pydantic takes no configuration for a bare dataclass

    @cached_property
    def _whole(self) -> SchemaValidator:
        """As the adapter's validator, but no field may be left out."""
        return SchemaValidator(_all_required(self._adapter.core_schema))

    def also(self, kind: type) -> None:
        """Write and read a further kind of a tagged union; the name of its class distinguishes it."""
        union, _ = get_args(self._kind)
        if any(known.__name__ == kind.__name__ and known is not kind for known in get_args(union)):
            raise InputError(self._name, "must be a class with a name of its own", kind.__name__)
        self._kind = Annotated[union | kind, Tagged()]
        for made in ("_adapter", "_whole"):
            self.__dict__.pop(made, None)

    def to_text(self, value: T, *, sort_keys: bool = True) -> str:
        """JSON, always the same for the same value."""
        return json.dumps(self._tree(value, "json", None), sort_keys=sort_keys)

    def from_text(self, text: str) -> T:
        """The value that `to_text` wrote. Fields that have a default may be missing: earlier versions had fewer."""
        if len(text) > MOST_TEXT:
            raise self._error("it is too long", f"{len(text)} characters")
        return self._read(self._adapter.validator, text, _Beside({}), f"{len(text)} characters")

    def to_arrays(self, value: T) -> Arrays:
        """Named arrays, one of which holds everything else as JSON."""
        beside = _Beside({TREE: np.zeros(0, dtype=np.uint8)})
        return with_tree(beside.arrays, self._tree(value, "python", beside))

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> T:
        """The value that `to_arrays` wrote. As for texts, fields that have a default may be missing."""
        arrays = self._todays(arrays, found := f"{len(arrays)} arrays")
        return self._read(self._adapter.validator, arrays[TREE].tobytes(), _Beside(arrays), found)

    def encode(self, value: T) -> bytes:
        """A message."""
        return save(self.to_arrays(value))

    def decode(self, message: bytes) -> T:
        """The value of a message in which no field is missing, and nothing is left over."""
        found = f"{len(message)} bytes"
        if int.from_bytes(message[:8], "little") > MOST_HEADER:
            raise self._error("its header is too long", found)
        try:
            arrays = load(message)
        except (SafetensorError, *WRONG) as error:
            raise self._error(type(error).__name__, found) from None
        if any(max(array.shape, default=0) > len(message) for array in arrays.values()):  # empty ones may claim any
            raise self._error("an array is larger than the message", found)
        arrays = self._todays(arrays, found)
        if len(arrays[TREE]) > MOST_HEADER:
            raise self._error("its JSON is too long", found)
        beside = _Beside(arrays, lists=False)
        value = self._read(self._whole, arrays[TREE].tobytes(), beside, found)
        if beside.used != arrays.keys():
            raise self._error("there are further arrays", found)
        return value

    def _todays(self, arrays: Mapping[str, NDArray[Any]], found: str) -> Arrays:
        try:
            arrays = self._earlier(dict(arrays))
            if arrays[TREE].dtype != np.uint8 or arrays[TREE].ndim != 1:
                raise TypeError(TREE)
        except InputError:
            raise
        except WRONG as error:
            raise self._error(type(error).__name__, found) from None
        return arrays

    def _tree(self, value: T, mode: Literal["json", "python"], beside: _Beside | None) -> Any:
        if value is None:
            raise InputError(self._name, "must be there", None)
        try:
            return self._adapter.dump_python(
                value, mode=mode, context=beside, warnings="none", fallback=lambda number: number.item()
            )
        except (PydanticSerializationError, AttributeError) as error:
            raise InputError(self._name, f"must be of a known kind ({error})", type(value).__name__) from None

    def _read(self, validator: Any, tree: str | bytes, beside: _Beside, found: str) -> T:
        try:
            value: T | None = validator.validate_json(tree, strict=True, context=beside)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])[:100]
            raise self._error(f"{first['type']} at {where!r}", found) from None
        if value is None:
            raise self._error("it is empty", found)
        return value

    def _error(self, why: str, found: str) -> InputError:
        return InputError(self._what, f"must be a whole {self._name} ({why})", found)


def unless(default: object) -> Any:
    """For a field that came later: it is written unless it has its default, so that what has it is as it was before."""
    return Field(exclude_if=lambda value: value is default or (type(value) is type(default) and value == default))


def with_tree(arrays: Mapping[str, NDArray[Any]], tree: object) -> Arrays:
    """These arrays, and a tree that names them."""
    return {**arrays, TREE: np.frombuffer(_compact(tree).encode(), dtype=np.uint8)}


def _all_required(schema: Any) -> Any:
    """A schema of pydantic in which no field of a dataclass has a default, but for those that may be left out."""
    if isinstance(schema, list):
        return [_all_required(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = schema.get("schema")
    left_out = "serialization_exclude_if" in schema
    if (
        schema.get("type") == "dataclass-field"
        and isinstance(inner, dict)
        and inner["type"] == "default"
        and not left_out
    ):
        schema = {**schema, "schema": inner["schema"]}
    return {key: _all_required(part) for key, part in schema.items()}
