"""Citations of Messages, annotations of Responses and Chat.

An annotation that was made of a citation keeps the citation under `citation`, so that it can be given back whole.
"""

from __future__ import annotations

from typing import Any

from nemo_gym.dialects.conversion.refusal import Notes
from nemo_gym.records.codec import JsonObject

_ORIGINAL = "citation"


def annotations_from_citations(citations: Any, text: str) -> list[JsonObject]:
    """Return the annotations of a text block; a web source becomes `url_citation`, a document `file_citation`."""
    found: list[JsonObject] = []
    for citation in citations if isinstance(citations, list) else ():
        if not isinstance(citation, dict):
            continue
        url = citation.get("url") or citation.get("source")
        if isinstance(url, str):
            found.append(
                {
                    "type": "url_citation",
                    "url": url,
                    "title": citation.get("title") or "",
                    "start_index": 0,
                    "end_index": len(text),
                    _ORIGINAL: citation,
                }
            )
        else:
            found.append(
                {
                    "type": "file_citation",
                    "file_id": citation.get("file_id") or "",
                    "filename": citation.get("document_title") or "",
                    "index": len(text),
                    _ORIGINAL: citation,
                }
            )
    return found


def citations_from_annotations(annotations: Any, text: str, notes: Notes) -> list[JsonObject]:
    """Return the citations of a text part; what Messages has no form for is noted."""
    found: list[JsonObject] = []
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict):
            continue
        if isinstance(annotation.get(_ORIGINAL), dict):
            found.append(annotation[_ORIGINAL])
        elif annotation.get("type") == "url_citation":
            start, end = annotation.get("start_index"), annotation.get("end_index")
            cited = text[start:end] if isinstance(start, int) and isinstance(end, int) else ""
            found.append(
                {
                    "type": "web_search_result_location",
                    "url": annotation.get("url") or "",
                    "title": annotation.get("title"),
                    "cited_text": cited,
                    "encrypted_index": "",
                }
            )
        else:
            notes.append(f"annotation of type `{annotation.get('type')}` dropped")
    return found


def annotations_from_chat(annotations: Any) -> list[JsonObject]:
    """Return Chat's nested annotations in the flat form of Responses; other kinds stay as they are."""
    found: list[JsonObject] = []
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict):
            continue
        nested = annotation.get("url_citation")
        flat = {"type": "url_citation", **nested} if isinstance(nested, dict) else annotation
        found.append(flat)
    return found


def chat_annotations(annotations: Any) -> list[JsonObject]:
    """Return annotations in Chat's nested form; only `url_citation` has one, other kinds stay as they are."""
    found: list[JsonObject] = []
    for annotation in annotations if isinstance(annotations, list) else ():
        if (
            isinstance(annotation, dict)
            and annotation.get("type") == "url_citation"
            and "url_citation" not in annotation
        ):
            nested = {key: value for key, value in annotation.items() if key != "type"}
            found.append({"type": "url_citation", "url_citation": nested})
        elif isinstance(annotation, dict):
            found.append(annotation)
    return found
