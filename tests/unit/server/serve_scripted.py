"""A process that serves a scripted model: `python serve_scripted.py STATE_FOLDER STEP_S`."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from unit.server.scripted_engine import server

from umbel.server.serving import make_server, serve
from umbel.server.settings import ServerSettings

if __name__ == "__main__":
    state, step_s = Path(sys.argv[1]), float(sys.argv[2])
    with server(ServerSettings(state=state, drain_s=5), max_running=4) as made:
        made.script(lambda prompt: f"to {prompt}")
        made.runner.before_step = lambda plan: time.sleep(step_s)
        serve(
            make_server(
                made.app, host="127.0.0.1", port=0, on_ready=lambda place: print(place, flush=True)
            )
        )
