"""Describes the API as an OpenAPI document, made from the bodies' own models.

Fields that are taken without effect, or with one value alone, are in it: clients that check their
bodies by it may send them. Answers are objects of OpenAI's, and are not described again.
"""

from collections.abc import Collection, Mapping
from typing import Any

import pydantic
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from snapexport.serving.openai.protocol import IGNORED, NEUTRAL

VERSION = "3.1.0"
REFERENCE = "#/components/schemas/{model}"

ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def document(
    version: str,
    posts: Mapping[str, type[pydantic.BaseModel]],
    gets: Mapping[str, str],
) -> dict[str, Any]:
    """posts: paths with their bodies. gets: paths with the content types of their answers."""
    references, schemas = _schemas(set(posts.values()))
    paths: dict[str, Any] = {}
    for path, body in posts.items():
        content = _json(references[body])
        body_of = {"required": True, "content": content}
        paths[path] = {"post": {"requestBody": body_of, "responses": _responses()}}
    for path, kind in gets.items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        paths[path] = {
            "get": {"parameters": list(map(_in_path, names)), "responses": _responses(kind)}
        }
    return {
        "openapi": VERSION,
        "info": {"title": "snapexport serve", "version": version},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR, **schemas}},
    }


def _schemas(bodies: Collection[type[pydantic.BaseModel]]) -> tuple[dict[Any, str], dict[str, Any]]:
    """References to the schemas of bodies, and all schemas by name."""
    given: list[tuple[type[pydantic.BaseModel], JsonSchemaMode]] = [
        (body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)
    ]
    found, others = models_json_schema(given, ref_template=REFERENCE)
    references = {body: schema["$ref"] for (body, _), schema in found.items()}
    schemas: dict[str, Any] = others["$defs"]
    for reference in references.values():
        schema = schemas[reference.rpartition("/")[2]]
        own = schema["properties"]
        neutral = {name: {"enum": list(values)} for name, values in NEUTRAL.items()}
        schema["properties"] = {**{name: {} for name in sorted(IGNORED)}, **neutral, **own}
    for schema in schemas.values():  # null counts as absent
        for name in schema.get("properties", {}).keys() - set(schema.get("required", ())):
            schema["properties"][name] = _or_null(schema["properties"][name])
    return references, schemas


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    default = {"default": schema["default"]} if "default" in schema else {}
    bare = {name: value for name, value in schema.items() if name != "default"}
    return {"anyOf": [bare, {"type": "null"}], **default}


def _json(reference: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": reference}}}


def _responses(kind: str = "application/json") -> dict[str, Any]:
    content = {kind: {"schema": {"type": "object"} if kind == "application/json" else {}}}
    error = {"description": "an error", "content": _json(REFERENCE.format(model="Error"))}
    return {"200": {"description": "the answer", "content": content}, "default": error}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
