"""Lets an engine end only once the agent of its node has handed back what the engine held.

The preStop hook of the engines' containers. It asks the agent's /drained until that answers 200,
and leaves the limit to the grace of the pod. The images have no curl, but every engine is Python.
"""

import os
import time
import urllib.error
import urllib.request

# The agent and this hook learn of the pod's deletion at the same time; an agent that holds nothing
# at that moment must have closed its gate before it is asked.
HEAD_START_SECONDS = 2

# Without an agent nobody hands anything back. A new one is there within this, after an upgrade.
SILENCE_LIMIT_SECONDS = 30

POLL_SECONDS = 0.5
ANSWER_LIMIT_SECONDS = 5


def main() -> None:
    host = os.environ["NODE_IP"]
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{os.environ['EBBTIDE_AGENT_PORT']}/drained"
    # No proxy is on the way to the own node.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    time.sleep(HEAD_START_SECONDS)
    heard_at = time.monotonic()
    while time.monotonic() - heard_at < SILENCE_LIMIT_SECONDS:
        try:
            opener.open(url, timeout=ANSWER_LIMIT_SECONDS).close()
            return
        except urllib.error.HTTPError:
            # It answers, and still holds something.
            heard_at = time.monotonic()
        except OSError:
            pass
        time.sleep(POLL_SECONDS)


main()
