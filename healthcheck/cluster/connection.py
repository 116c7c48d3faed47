"""Connection to Kubernetes: requests with a deadline, paged listings, watches, and their errors."""

from __future__ import annotations

import functools
import inspect
import math
import os
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from msgspec.json import decode

from gpu_healthcheck.healthcheck.cluster.errors import (
    Blocked,
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    Unauthorized,
    Unavailable,
    Unreadable,
)
from gpu_healthcheck.healthcheck.cluster.kubeconfig import Access, KubeconfigError, choose
from gpu_healthcheck.healthcheck.cluster.names import COMPONENT
from gpu_healthcheck.healthcheck.node.state import FIELD_MANAGER
from gpu_healthcheck.healthcheck.text.moments import moment

T = TypeVar("T")
Parse = Callable[[bytes], Any]
Connector = Callable[[], ApiClient]

_CONNECT_SECONDS, _READ_SECONDS = 3.0, 10.0
_KUBELET_SECONDS = 30.0
_SILENCE_SECONDS = 150.0
"""Read timeout of a watch, which receives a bookmark about once a minute. After it, the server counts as gone."""
_LONGEST_LINE = 8 << 20
_FRAMING_BYTES = 1 << 20
"""Bytes of a command's WebSocket beyond its output: headers of frames, standard error, the status."""
_STREAMS, _STDOUT, _STATUS = ["v5.channel.k8s.io", "v4.channel.k8s.io"], b"\x01", b"\x03"
"""Protocols of a command's WebSocket, and first byte of its frames."""
_TLS = {"ca_certs": "ssl_ca_cert", "certfile": "cert_file", "keyfile": "key_file", "server_hostname": "tls_server_name"}
"""Options of TLS of a WebSocket, with the names in the configuration."""
_LONGEST_MESSAGE = 500
_PAGE = 500
_LONGEST_RETRY_AFTER = 60.0
"""Longest Retry-After that is respected, in seconds: after a longer pause, the agent's heartbeat would expire."""
_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""Messages of the API server (with status 500) for an object that is too large for the store."""
_BUDGETS = ("disruption budget", "PodDisruptionBudget")
"""Parts of the API server's messages about an eviction that a disruption budget blocks."""
ODD = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Exceptions from reading an object with an unexpected shape or value."""
_METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
_NO_CONFIGURATION = (config.ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
"""Client exceptions for a kubeconfig, token or certificate that is missing, invalid, or being written."""
_NO_CONNECTION = (urllib3.exceptions.HTTPError, ApiException, ssl.SSLError)
_NO_TOKEN = (config.ConfigException, ValueError)
"""Client exceptions for a token that is read again before a request, and is empty or invalid in a header."""


def connect(access: Access | None = None) -> ApiClient:
    """Return a client for the chosen cluster. `access` has the user's options. Raises ClusterError."""
    configuration = Configuration()
    try:
        chosen = choose(access)
        if chosen is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(os.pathsep.join(chosen.files), chosen.context, configuration)
        configuration.retries = False  # the caller has the newest verdict and decides when to retry
        client = ApiClient(configuration)  # reads the certificates
    except KubeconfigError as error:
        raise ClusterError(f"can't connect to a cluster: {error}") from error
    except _NO_CONFIGURATION as error:
        raise ClusterError(f"can't connect to a cluster: {say(error)}") from error
    client.user_agent = COMPONENT
    return client


def refuse_to_read(what: str) -> None:
    """Raise ClusterError for an unreadable object.

    This is the default, for callers that require complete listings.
    """
    raise ClusterError(f"an unreadable object: {what}")


@contextmanager
def _readable(request: str) -> Iterator[None]:
    try:
        yield
    except ODD as error:
        raise Unreadable(f"{request}: an answer of unexpected form: {say(error)}") from error


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: it raises Unreadable if it fails on the shape of an answer."""
    request = method.__name__.replace("_", " ")

    @functools.wraps(method)
    def call(*values: Any, **named: Any) -> Any:
        with _readable(request):
            return method(*values, **named)

    @functools.wraps(method)
    def iterate(*values: Any, **named: Any) -> Iterator[Any]:
        with _readable(request):
            yield from method(*values, **named)

    return iterate if inspect.isgeneratorfunction(method) else call


class Connection:
    """Sends requests to the API server, each with a deadline. Safe to use from several threads. Raises ClusterError.

    `pass_over` is called with a description of each unreadable object of a listing; by default such an object is an
    error. `request_seconds` is the user's limit for each request except a watch; 0 means no limit.
    """

    def __init__(
        self,
        connector: Connector = connect,
        pass_over: Callable[[str], None] = refuse_to_read,
        request_seconds: float | None = None,
    ) -> None:
        self._connector = connector
        self.pass_over = pass_over
        self._request_seconds = request_seconds
        self._client = connector()

    def request(  # noqa: PLR0913 - one place for all parts of a request
        self,
        verb: str,
        path: str,
        resource: str,
        body: Mapping[str, Any] | None = None,
        *,
        merge: str = "",
        query: Mapping[str, str] | None = None,
        accept: str = _JSON,
        by_kubelet: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request. `by_kubelet`: a kubelet answers, so there is a limit even if the user wants none."""
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = f"application/{merge}-patch+json" if merge else "application/json"
        method = _METHODS[verb]
        parameters = dict(query or {})
        if method in ("POST", "PATCH"):
            parameters["fieldManager"] = FIELD_MANAGER
        try:
            body = self._client.sanitize_for_serialization(body)
        except ODD as error:  # an error of this program, not of the answer
            raise RuntimeError(f"{verb} {resource}: {say(error)}") from error
        try:
            call = self._client.param_serialize(  # reads the token
                method,
                path,
                query_params=[(key, value) for key, value in parameters.items() if value],
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._client.call_api(*call, _request_timeout=self._patience(verb, by_kubelet=by_kubelet))
        except (urllib3.exceptions.HTTPError, OSError, ApiException, *_NO_TOKEN) as error:
            self._connect_anew()  # a changed certificate is only read by a new client
            raise Unavailable(f"{verb} {resource}: {say(error)}") from error
        response: urllib3.BaseHTTPResponse = answer.response
        if response.status >= 400:
            self._raise(response, verb, resource)
        return response

    def execute(self, path: str, query: Sequence[tuple[str, str]], seconds: float, longest: int) -> bytes:
        """Run a command in a container, and return its output as far as it came within `seconds`, cut after `longest`.

        The pod may be hostile, and send anything without end. Raises Refused if the command fails without an output.
        """
        from kubernetes.stream.ws_client import websocket_proxycare  # noqa: PLC0415 - seldom used
        from websocket import ABNF, WebSocket, WebSocketBadStatusException, WebSocketException  # noqa: PLC0415

        ends_at, left, output = time.monotonic() + seconds, longest + _FRAMING_BYTES, bytearray()
        options, verify = self._client.configuration, bool(self._client.configuration.verify_ssl)
        tls = {"cert_reqs": ssl.CERT_REQUIRED if verify else ssl.CERT_NONE, "check_hostname": verify}
        tls |= {name: getattr(options, known) for name, known in _TLS.items()}
        socket = WebSocket(sslopt=tls, skip_utf8_validation=True)
        receive = socket.frame_buffer.recv

        def receive_in_time(most: int) -> bytes:
            nonlocal left
            if (patience := ends_at - time.monotonic()) <= 0 or left <= 0:
                raise TimeoutError
            socket.settimeout(patience)
            chunk = receive(most)
            left -= len(chunk)
            return chunk

        socket.frame_buffer.recv = receive_in_time
        try:
            call = self._client.param_serialize("GET", path, query_params=[*query], auth_settings=["BearerToken"])
            proxy = websocket_proxycare({"redirect_limit": 0, "suppress_origin": True}, options, call[1], call[2])
            url = f"ws{call[1].removeprefix('http')}"
            socket.connect(url, header=call[2], subprotocols=_STREAMS, timeout=seconds, **proxy)
        except WebSocketBadStatusException as error:
            self._raise(urllib3.HTTPResponse(error.resp_body or b"", status=error.status_code), "create", "pods/exec")
        except (WebSocketException, OSError, *_NO_TOKEN) as error:
            raise Unavailable(f"create pods/exec: {say(error)}") from error
        try:
            while len(output) < longest:
                code, frame = socket.recv_data()
                if frame[:1] == _STATUS and b'"Failure"' in frame and not output:
                    raise Refused(f"create pods/exec: {_message(urllib3.HTTPResponse(frame[1:]))}")
                if code == ABNF.OPCODE_CLOSE or frame[:1] == _STATUS:
                    break
                output += frame[1:] if frame[:1] == _STDOUT else b""
        except (WebSocketException, OSError):
            pass  # it did not end in time
        finally:
            socket.shutdown()
        return bytes(output[:longest])

    @property
    def kubelet_seconds(self) -> float:
        """Return the limit for a whole answer of a kubelet, in seconds."""
        return self._request_seconds or _KUBELET_SECONDS

    def _patience(self, verb: str, *, by_kubelet: bool) -> tuple[float | None, float | None]:
        """Return the timeouts to connect and to wait for more data, in seconds; None means no limit."""
        seconds = self._request_seconds or None if by_kubelet else self._request_seconds
        connect_seconds, read_seconds = (_CONNECT_SECONDS, _READ_SECONDS) if seconds is None else (seconds or None,) * 2
        return connect_seconds, _SILENCE_SECONDS if verb == "watch" else read_seconds

    def _connect_anew(self) -> None:
        """Replace the client.

        If this fails, for instance without a file descriptor or a kubeconfig, keep the present one.
        """
        with suppress(ClusterError, *_NO_CONFIGURATION):
            self._client = self._connector()

    def _raise(self, response: urllib3.BaseHTTPResponse, verb: str, resource: str) -> None:
        message = f"{verb} {resource}: {response.status}: {_message(response)}"
        match response.status:
            case 401:
                self._connect_anew()
                raise Unauthorized(message)
            case 403:
                raise Forbidden(message, verb, resource)
            case 404:
                raise NotFound(message)
            case 409:
                raise Conflict(message)
            case 429 | 500 if any(word in message for word in _BUDGETS):
                raise Blocked(message, _retry_after(response))
            case 429:
                raise Unavailable(message, _retry_after(response))
            case 500 if any(word in message for word in _TOO_LARGE):
                raise Refused(message)
            case status if status >= 500 or status == 410:
                raise Unavailable(message, _retry_after(response))
        raise Refused(message)


class Requests:
    """Requests for one kind of object, over a connection. Base of one class per kind.

    Failed requests raise ClusterError. The public methods raise Unreadable for an answer of an unexpected shape.
    """

    def __init_subclass__(cls, unguarded: Collection[str] = ()) -> None:
        """Convert errors on the shape of an answer into Unreadable, for each public method.

        `unguarded` names methods that call functions of the caller: errors of these functions pass unchanged.
        """
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in unguarded:
                setattr(cls, name, _guarded(method))

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _json(
        self, verb: str, path: str, resource: str, body: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Send a request with the options of `Connection.request`, and return the object of the answer."""
        return _read(self._connection.request(verb, path, resource, body, **options), f"{verb} {resource}")

    def _pages(
        self, path: str, resource: str, query: Mapping[str, str], parse: Parse = decode
    ) -> Iterator[dict[str, Any]]:
        for page in self._listing(path, resource, query, parse):
            yield from page.get("items") or []

    def _listing(
        self, path: str, resource: str, query: Mapping[str, str], parse: Parse = decode, accept: str = _JSON
    ) -> Iterator[dict[str, Any]]:
        """Yield all pages. The next page is requested while the caller handles the current page."""
        page, token = self._page(path, resource, query, parse, accept)
        if token:
            with ThreadPoolExecutor(1, "page") as ahead:
                while token:
                    following = ahead.submit(self._page, path, resource, {**query, "continue": token}, parse, accept)
                    yield page
                    page, token = following.result()
        yield page

    def _page(
        self, path: str, resource: str, query: Mapping[str, str], parse: Parse, accept: str
    ) -> tuple[dict[str, Any], str]:
        """Return one page and the token of the next, which is empty for the last page."""
        asked = {**query, "limit": str(_PAGE)}
        answer = self._connection.request("list", path, resource, query=asked, accept=accept)
        page = _read(answer, f"list {resource}", parse)
        metadata = page.get("metadata") or {}
        if not (isinstance(metadata, dict) and isinstance(page.get("items", page.get("rows", 0)), list | None)):
            raise Unavailable(f"list {resource}: an answer that is no list")
        token = metadata.get("continue") or ""
        if not isinstance(token, str) or token == query.get("continue"):
            raise Unavailable(f"list {resource}: a page with an invalid token of the next one")
        return page, token

    def _names(self, path: str, resource: str, query: Mapping[str, str]) -> list[str]:
        """Return the names on the first page, without requesting the rest of the objects."""
        asked = {**query, "limit": str(_PAGE)}
        page = _read(
            self._connection.request("list", path, resource, query=asked, accept=_METADATA), f"list {resource}"
        )
        return [str(object_["metadata"]["name"]) for object_ in page.get("items") or ()]

    def _each(self, resource: str, objects: Iterable[Mapping[str, Any]], read: Callable[[Any], T]) -> Iterator[T]:
        """Yield all readable objects: one malformed object must not hide the others."""
        for object_ in objects:
            try:
                state = read(object_)
            except ODD as error:
                self._connection.pass_over(unreadable(resource, object_, error))
            else:
                yield state

    def _watch(self, path: str, resource: str, query: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        response = self._connection.request("watch", path, resource, query=query)
        try:
            for line in _lines(response):
                event = decode(line)
                if event.get("type") == "ERROR":
                    raise Unavailable(f"watch {resource}: {str(event.get('object'))[:_LONGEST_MESSAGE]}")
                if event.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                    yield event["type"], event["object"]
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"watch {resource}: {say(error)}") from error
        except (*ODD, RecursionError) as error:
            raise Unavailable(f"watch {resource}: an answer that is no watch event: {error!r}") from error
        finally:
            response.close()


def unreadable(resource: str, entry: Any, error: Exception) -> str:
    """Describe an unreadable object: its kind, its name as far as it is known, and the error."""
    metadata = entry.get("metadata") if isinstance(entry, dict) else None
    known = metadata if isinstance(metadata, dict) else {}
    name = "/".join(str(known[key]) for key in ("namespace", "name") if known.get(key))
    return f"{resource} {name}: {say(error)}"


def _read(response: urllib3.BaseHTTPResponse, what: str, parse: Parse = decode) -> dict[str, Any]:
    try:
        answer = parse(response.data)
    except (ValueError, RecursionError, urllib3.exceptions.HTTPError) as error:
        raise Unavailable(f"{what}: an answer that is no JSON, or has an unexpected form: {say(error)}") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"{what}: an answer that is no object")
    return answer


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)
        if len(rest) > _LONGEST_LINE:
            raise ValueError(f"a line of more than {_LONGEST_LINE} bytes")


def _message(response: urllib3.BaseHTTPResponse) -> str:
    try:
        raw = response.data
    except urllib3.exceptions.HTTPError as error:
        return say(error)
    try:
        status = decode(raw)
        return " ".join([str(status["message"]), *_budgets(status)])[:_LONGEST_MESSAGE]
    except (*ODD, RecursionError):
        return raw[:_LONGEST_MESSAGE].decode("utf-8", "backslashreplace")


def _budgets(status: Mapping[str, Any]) -> list[str]:
    """Return the names of the disruption budgets that block a pod, which the error message does not contain."""
    details = status.get("details")
    causes = (details.get("causes") or ()) if isinstance(details, dict) else ()
    return [str(cause.get("message", "")) for cause in causes if cause.get("reason") == "DisruptionBudget"]


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    """Return the seconds of the header Retry-After, limited to a maximum.

    None for a missing header, a date or NaN, because a wait of NaN seconds would end at once.
    """
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)


def say(error: BaseException) -> str:
    """Return the text of a library's error. A failed connection is described without names of Python."""
    reason = _connection_failure(error) if isinstance(error, _NO_CONNECTION) else ""
    return (reason or f"{type(error).__name__}: {error}")[:_LONGEST_MESSAGE]


def _connection_failure(error: BaseException) -> str:
    server = getattr(error, "conn", None) or getattr(error, "pool", None)
    at = f"{server.host}:{server.port}: " if server else ""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{at}the certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"{at}no TLS connection: {str(cause.reason or cause).replace('_', ' ').lower()}"
        if isinstance(cause, TimeoutError):
            return f"{at}no answer in time"
        if isinstance(cause, OSError) and cause.strerror:
            return f"{at}{cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return ""


def created(metadata: Mapping[str, Any]) -> datetime | None:
    text = metadata.get("creationTimestamp")
    return moment(text) if text else None
