"""`gpu-healthcheck mcp`: the commands that change nothing, as tools of a Model Context Protocol server."""

from __future__ import annotations

from gpu_healthcheck.cli.options import Context, Kubeconfig
from gpu_healthcheck.cli.words import end


def mcp(context: Context = "", kubeconfig: Kubeconfig = "") -> None:
    """Serve status, diagnose, explain and replay, read-only, to an MCP client on stdin and stdout."""
    try:
        from gpu_healthcheck.cli import mcp_server  # noqa: PLC0415 - its packages are an optional extra
    except ImportError as error:
        end("mcp", f"{error}; install the optional packages: pip install 'gpu-healthcheck[mcp]'")
    mcp_server.serve(context, kubeconfig)
