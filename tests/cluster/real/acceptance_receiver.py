"""The webhook for the rows of `acceptance.py`: the shipped program in the pod of the shipped receiver.

The pod gives variables, account and network; spec, token and port are the tests' own, so that no alert of the cluster's
Alertmanager comes here, and none of the tests' goes to a spec that is trained there.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from pathlib import Path

from acceptance import RowFailedError, RowSkippedError
from kubernetes import client
from kubernetes.stream import stream

PROGRAM = Path(__file__).with_name("receiver_program.py").read_text()
SELECTOR = "app.kubernetes.io/name=shortlist-trigger"
_SECONDS = 300
# Compressed, since the arguments are a part of the request's address, of which proxies take 8 kB.
_LOADER = (
    "import base64, sys, zlib;"
    " sys.argv[1:3] = [zlib.decompress(base64.b64decode(text)).decode() for text in sys.argv[1:3]];"
    " exec(sys.argv.pop(1))"
)


@dataclass
class ReceiverPod:
    """The pod of the shipped receiver."""

    configuration: client.Configuration
    namespace: str
    spec: str
    """Text of a spec that was not trained before: the policy starts no second training so soon."""
    program: str = PROGRAM

    def post_alert(self, token: str) -> int:
        """Send an alert with the token `true` or `forged`; return the status."""
        packed = [base64.b64encode(zlib.compress(text.encode())).decode() for text in (self.program, self.spec)]
        with client.ApiClient(self.configuration) as api:  # of its own: `stream` changes a client
            core = client.CoreV1Api(api)
            selected = {"label_selector": SELECTOR, "field_selector": "status.phase=Running"}
            pods = core.list_namespaced_pod(self.namespace, **selected).items
            api.rest_client.pool_manager.clear()
            if not pods:
                raise RowSkippedError(f"no pod of the receiver ({SELECTOR}) runs in the namespace {self.namespace}")
            name = pods[0].metadata.name
            session = stream(
                core.connect_get_namespaced_pod_exec, name, self.namespace, _preload_content=False,
                command=["python", "-c", _LOADER, *packed, token], stdout=True, stderr=True,
            )  # fmt: skip
        session.run_forever(timeout=_SECONDS)
        output, errors, code = session.read_stdout(), session.read_stderr(), session.returncode
        session.sock.shutdown()
        if code != 0:
            lines = f"{output}{errors}".strip().splitlines() or [f"no answer within {_SECONDS} s"]
            raise RowFailedError(f"the receiver in {name} ended: {lines[-1]}")
        return int(output.split()[-1])
