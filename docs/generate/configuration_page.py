"""The page of all keys of a configuration: names, values and rules from the program, meanings from keys.py."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from keys import KEYS, SECTIONS
from pydantic.fields import FieldInfo

from privfair.config import Config
from privfair.datasets import describe

HEAD = """# Configuration

A run is described by a TOML file, by `--set section.key=value`, or by the same sections in Python
(`privfair.train(fairness={"lambda": 2.0})`). Every key has a default. An unknown key is an error that suggests
the nearest name. This page is made from the program by `python docs/generate/pages.py`.

"""
WORDS = {float: "number", int: "whole number", str: "text", bool: "true or false", NoneType: "nothing"}
BOUNDS: dict[type, tuple[str, str]] = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def configuration_page() -> str:
    """Markdown: one section a table of the file, then the options of every dataset."""
    return HEAD + "\n".join([*_tables(), *_datasets()])


def keys() -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of everything that can be configured."""
    for section, about in Config.model_fields.items():
        table: Any = about.annotation
        for name, field in table.model_fields.items():
            yield section, field.alias or name, field


def _tables() -> Iterator[str]:
    before = ""
    for section, key, field in keys():
        if section != before:
            yield f"\n## `[{section}]`\n\n{SECTIONS.get(section, '')}\n"
            yield "| key | value | default | meaning |\n|---|---|---|---|"
            before = section
        name = f'`{key}`<a id="{section}-{key}"></a>'
        default = "–" if field.default is None else f"`{_toml(field.default)}`"
        yield f"| {name} | {_values(field)} | {default} | {meaning(section, key)} |"
    yield ""


def meaning(section: str, key: str) -> str:
    """In a sentence: from keys.py, or else the comment beside the key in the program."""
    if f"{section}.{key}" in KEYS:
        return KEYS[f"{section}.{key}"]
    table: Any = Config.model_fields[section].annotation
    found = re.search(rf"^\s+{key}: .*?\s# (.+)$", inspect.getsource(table), re.MULTILINE)
    if found is None:
        raise KeyError(f"docs/generate/keys.py must say what {section}.{key} means")
    return found[1]


def _values(field: FieldInfo) -> str:
    """What may stand there, with its bounds."""
    known = [(*BOUNDS[type(rule)], rule) for rule in field.metadata if type(rule) in BOUNDS]
    bounds = [f"{sign} {getattr(rule, attribute):g}" for sign, attribute, rule in known]
    return ", ".join([_kind(field.annotation), *bounds])


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin is tuple:
        inner = arguments[0] if arguments[-1] is Ellipsis else arguments
        return f"list of {_kind(inner)}s" if arguments[-1] is Ellipsis else f"{len(arguments)} numbers"
    if origin is Union or type(annotation).__name__ == "UnionType":
        return _kind(next(a for a in arguments if a is not NoneType))
    if origin is dict:
        return f"table of {' -> '.join(_kind(one) for one in arguments)}"
    return WORDS[annotation]


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _datasets() -> Iterator[str]:
    yield "## Options of the datasets\n"
    yield "Further keys of `[data]`, by `name`. `privfair data list` shows which are on this machine.\n"
    for info in describe():
        yield f"### data: {info.name}\n"
        yield f"{info.description}. Source: {info.source}. Licence: {info.licence}.\n"
        for paragraph in info.paragraphs():
            yield f"{paragraph}\n"
        yield "| option | default |\n|---|---|"
        for option, default in info.options.items():
            shown = "required" if default == "(required)" else "–" if default is None else f"`{_toml(default)}`"
            yield f"| `{option}` | {shown} |"
        yield ""
