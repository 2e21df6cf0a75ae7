"""Content parts of messages: text, images, files, audio and video, from and to the canonical parts."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from nemo_gym.dialects.conversion.refusal import ConversionError, Notes
from nemo_gym.dialects.conversion.shapes import as_object, as_text, objects
from nemo_gym.records.codec import JsonObject

_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)


def input_text(text: str) -> JsonObject:
    """Return a text part."""
    return {"type": "input_text", "text": text}


def output_text(text: str, annotations: list[Any] | None = None) -> JsonObject:
    """Return a text part of the model."""
    return {"type": "output_text", "text": text, "annotations": annotations or []}


# Messages <-> canonical


def image_from_block(block: JsonObject, where: str) -> JsonObject:
    """Return the `input_image` of an `image` block; raises ConversionError for a source that has no counterpart."""
    source = as_object(block.get("source"))
    kind = source.get("type")
    if kind == "base64":
        url = f"data:{source.get('media_type') or 'image/png'};base64,{source.get('data') or ''}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if kind == "url":
        return {"type": "input_image", "image_url": source.get("url"), "detail": "auto"}
    if kind == "file":
        return {"type": "input_image", "file_id": source.get("file_id"), "detail": "auto"}
    raise ConversionError(f"{where}: an image with source `{kind}` has no counterpart", param=where)


def document_from_block(block: JsonObject, where: str) -> list[JsonObject]:
    """Return the parts of a `document` or `search_result` block: its text, or a file."""
    if block.get("type") == "search_result":
        content = block.get("content")
        texts = [as_text(part.get("text")) for part in objects(content) if part.get("type") == "text"]
        return [input_text("\n".join([*(str(block[key]) for key in ("title", "source") if block.get(key)), *texts]))]
    source = as_object(block.get("source"))
    kind, media = source.get("type"), source.get("media_type")
    name = block.get("title") or "document.pdf"
    if kind == "text":
        return [input_text(str(as_text(source.get("data"))))]
    if kind == "content":
        return _document_content(source.get("content"), where)
    if kind == "base64" and media == "application/pdf":
        data = f"data:application/pdf;base64,{source.get('data') or ''}"
        return [{"type": "input_file", "filename": name, "file_data": data}]
    if kind == "base64" and str(media).startswith("text/"):
        try:
            return [input_text(base64.b64decode(as_text(source.get("data")), validate=True).decode())]
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ConversionError(f"{where}: the text document is not base64 of UTF-8", param=where) from error
    if kind == "url":
        return [{"type": "input_file", "file_url": source.get("url")}]
    if kind == "file":
        return [{"type": "input_file", "file_id": source.get("file_id")}]
    raise ConversionError(f"{where}: a document with source `{kind}` ({media}) has no counterpart", param=where)


def note_unsaid(notes: Notes, block: JsonObject, parts: list[JsonObject], where: str) -> None:
    """Note what a `document` or `search_result` block says beside its content and `parts` do not."""
    names = ["citations", "context"]
    if block.get("type") == "document" and not any("filename" in part for part in parts):
        names.append("title")
    notes.extend(f"{where}: `{name}` dropped" for name in names if block.get(name) is not None)


def _document_content(content: Any, where: str) -> list[JsonObject]:
    if isinstance(content, str):
        return [input_text(content)]
    parts: list[JsonObject] = []
    for part in objects(content):
        if part.get("type") == "text":
            parts.append(input_text(str(as_text(part.get("text")))))
        elif part.get("type") == "image":
            parts.append(image_from_block(part, where))
    return parts


def block_from_part(given: Any, where: str) -> JsonObject:
    """Return the Messages block of an input part; raises ConversionError for audio, video and unknown parts."""
    part = _part(given, where)
    kind = part.get("type")
    if kind in ("input_text", "text", "output_text"):
        return {"type": "text", "text": as_text(part.get("text"))}
    if kind == "refusal":
        return {"type": "text", "text": as_text(part.get("refusal"))}
    if kind == "input_image":
        return {"type": "image", "source": _image_source(part, where)}
    if kind == "input_file":
        return _document_block(part, where)
    raise ConversionError(f"{where}: a content part of type `{kind}` has no counterpart in Messages", param=where)


def _image_source(part: JsonObject, where: str) -> JsonObject:
    if part.get("file_id"):
        return {"type": "file", "file_id": part["file_id"]}
    url = part.get("image_url")
    if not isinstance(url, str):
        raise ConversionError(f"{where}: an image needs `image_url` or `file_id`", param=where)
    inline = _DATA_URL.fullmatch(url)
    if inline:
        return {"type": "base64", "media_type": inline[1], "data": inline[2]}
    return {"type": "url", "url": url}


def _document_block(part: JsonObject, where: str) -> JsonObject:
    block: JsonObject = {"type": "document"}
    data = part.get("file_data")
    if part.get("file_id"):
        block["source"] = {"type": "file", "file_id": part["file_id"]}
    elif part.get("file_url"):
        block["source"] = {"type": "url", "url": part["file_url"]}
    elif isinstance(data, str):
        inline = _DATA_URL.fullmatch(data)
        media, payload = (inline[1], inline[2]) if inline else ("application/pdf", data)
        block["source"] = {"type": "base64", "media_type": media, "data": payload}
    else:
        raise ConversionError(f"{where}: a file needs `file_data`, `file_url` or `file_id`", param=where)
    if part.get("filename"):
        block["title"] = part["filename"]
    return block


# Chat <-> canonical


def chat_part(given: Any, where: str) -> JsonObject:
    """Return the Chat part of an input part; what chat backends do not take is refused by its type."""
    part = _part(given, where)
    kind = part.get("type")
    if kind in ("input_text", "text", "output_text"):
        return {"type": "text", "text": as_text(part.get("text"))}
    if kind == "input_image":
        if not isinstance(part.get("image_url"), str):
            raise ConversionError(f"{where}: an image by `file_id` cannot be sent to a chat backend", param=where)
        if part.get("detail") == "original":
            raise ConversionError(f"{where}: image detail `original` cannot be sent to a chat backend", param=where)
        image = {"url": part["image_url"]}
        if part.get("detail"):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind == "input_video":
        return {"type": "video_url", "video_url": {"url": part.get("video_url") or part.get("video")}}
    if kind in ("image_url", "video_url"):
        return part
    raise ConversionError(f"{where}: a content part of type `{kind}` cannot be sent to a chat backend", param=where)


def part_from_chat(given: Any, where: str) -> JsonObject:
    """Return the canonical part of a Chat request's part; raises ConversionError for an unknown one."""
    part = _part(given, where)
    kind = part.get("type")
    if kind == "text":
        return input_text(as_text(part.get("text")))
    if kind == "image_url":
        image = part.get("image_url")
        url = image if isinstance(image, str) else as_object(image).get("url")
        return {"type": "input_image", "image_url": url, "detail": as_object(image).get("detail") or "auto"}
    if kind == "video_url":
        video = part.get("video_url")
        return {"type": "input_video", "video_url": video if isinstance(video, str) else as_object(video).get("url")}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "file":
        file = as_object(part.get("file"))
        return {"type": "input_file", **{key: file[key] for key in ("file_data", "file_id", "filename") if key in file}}
    raise ConversionError(f"{where}: a content part of type `{kind}` has no counterpart in Responses", param=where)


def _part(value: Any, where: str) -> JsonObject:
    if isinstance(value, dict):
        return value
    raise ConversionError(f"{where}: a content part must be an object, this is a {type(value).__name__}", param=where)
