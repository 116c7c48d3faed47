"""HTTP of the API stand-in: a request in, a JSON object or a stream of watch events out."""

import json
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from gpu_healthcheck.sim.api_gate import RequestGate
from gpu_healthcheck.sim.api_objects import Object, RefusedError, bad_request
from gpu_healthcheck.sim.api_requests import Request, Target, parse_target
from gpu_healthcheck.sim.api_store import patch_of
from gpu_healthcheck.sim.loopback import LoopbackAnswers

JSON = {"Content-Type": "application/json"}


class ApiAnswers(LoopbackAnswers):
    """Answers of the API stand-in to HTTP requests."""

    def __init__(self, gate: RequestGate, *arguments: Any) -> None:
        self._gate = gate
        self._store = gate.store
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        url = urlsplit(self.path)
        body = self.read_body()
        headers = dict(JSON)
        try:
            self._gate.admit(self.command, url.path)
            target = parse_target(url.path, url.query)
            if target.query.get("watch") in ("true", "1"):
                self._record(body, HTTPStatus.OK)
                self._stream(target)
                return
            answer = self._do(target, body)
            status = HTTPStatus.CREATED if self.command == "POST" else HTTPStatus.OK
        except RefusedError as refused:
            answer, status = refused.status(), HTTPStatus(refused.code)
            if "retryAfterSeconds" in refused.details:
                headers["Retry-After"] = str(refused.details["retryAfterSeconds"])
        self._record(body, status)
        self.answer(status, json.dumps(answer).encode(), headers)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - as above

    def _record(self, body: bytes, status: int) -> None:
        try:
            parsed = _json_object(body)
        except RefusedError:
            parsed = {}
        self._gate.record(Request(time.monotonic(), self.command, self.path, parsed, status))

    def _do(self, target: Target, body: bytes) -> Object:
        place = (target.resource, target.namespace)
        match self.command:
            case "GET" if target.name:
                return self._store.get(*place, target.name)
            case "GET":
                return self._listing(target)
            case "POST":
                return self._store.create(*place, _json_object(body))
            case "PUT":
                return self._store.replace(*place, target.name, _json_object(body))
            case "PATCH":
                content_type = self.headers.get("Content-Type", "").partition(";")[0]
                change = patch_of(target.resource, _json_object(body), content_type, of_status=target.of_status)
                return self._store.patch(*place, target.name, change)
            case _:
                wanted_uid = _json_object(body).get("preconditions", {}).get("uid", "")
                self._store.delete(*place, target.name, wanted_uid)
                return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _listing(self, target: Target) -> Object:
        everything, version = self._store.find_all(target.resource, target.namespace)
        things = [thing for thing in everything if target.wants(thing)]
        start = target.number("continue")
        end = start + (target.number("limit") or len(things))
        metadata: Object = {"resourceVersion": str(version)}
        if end < len(things):
            metadata |= {"continue": str(end), "remainingItemCount": len(things) - end}
        return {
            "kind": f"{target.resource.kind}List",
            "apiVersion": target.resource.api_version,
            "metadata": metadata,
            "items": things[start:end],
        }

    def _stream(self, target: Target) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._watched(target):
            self._gate.hold()
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def _watched(self, target: Target) -> Iterator[Object]:
        seconds = target.number("timeoutSeconds")
        deadline = time.monotonic() + seconds if seconds else None
        version = target.number("resourceVersion")
        if 0 < version < self._store.oldest_version:
            message = f"too old resource version: {version} ({self._store.oldest_version})"
            yield {"type": "ERROR", "object": RefusedError(HTTPStatus.GONE, "Expired", message).status()}
            return
        if version == 0:
            present, version = self._store.find_all(target.resource, target.namespace)
            yield from ({"type": "ADDED", "object": thing} for thing in present if target.wants(thing))
        while changes := self._store.changes_after(target.resource, version, deadline):
            for change in changes:
                version = change.version
                if target.namespace in ("", change.object["metadata"].get("namespace")) and target.wants(change.object):
                    yield {"type": change.type, "object": change.object}
        if target.query.get("allowWatchBookmarks") == "true":
            bookmark = {
                "kind": target.resource.kind,
                "apiVersion": target.resource.api_version,
                "metadata": {"resourceVersion": str(version)},
            }
            yield {"type": "BOOKMARK", "object": bookmark}


def _json_object(body: bytes) -> Object:
    try:
        parsed = json.loads(body or b"{}")
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise bad_request("the body is not a JSON object")
    return parsed
