"""Every process of this environment ends with the one that started it, however that ended.

vLLM's engine and its workers outlive a server that is killed; in a container they would not.
"""

import ctypes
import signal

PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
