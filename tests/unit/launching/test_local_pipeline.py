"""What a person sees of a pipeline that runs on this machine."""

from __future__ import annotations

import io

from rolecast.launching.local_pipeline import _StepOutput

BY_KFP = """07:09:58.713 - INFO - Running pipeline: \x1b[95m'rolecast-sft-rl-eval'\x1b[0m
----------------
07:10:00.052 - INFO - Executing task \x1b[96m'train'\x1b[0m
07:10:00.052 - INFO - Streamed logs:

    [KFP Executor 2026-11-28 07:10:00,115 INFO]: Looking for component `train`
    [KFP Executor 2026-11-28 07:10:00,116 INFO]: Got executor_input:
    {
        "inputs": {
            "parameterValues": {"stage": "sft"}
        }
    }
    sft        20/20  2:36 < 0:00  nll 0.418
    [KFP Executor 2026-11-28 07:12:48,102 INFO]: Wrote executor output file to out.json.
    

07:12:50.118 - INFO - Task \x1b[96m'train'\x1b[0m finished with status \x1b[92mSUCCESS\x1b[0m
07:12:50.154 - INFO - Task \x1b[96m'train'\x1b[0m outputs:
    Output: '/runs/demo'
    notes: Markdown( name='notes',
                     metadata={} )
----------------
07:12:50.242 - INFO - Executing task \x1b[96m'evaluate'\x1b[0m
07:12:50.242 - INFO - Streamed logs:

    rolecast: runs/demo has no sft model yet
07:12:51.118 - ERROR - Task \x1b[96m'evaluate'\x1b[0m finished with status \x1b[91mFAILURE\x1b[0m
"""  # fmt: skip


def test_steps_are_shown_and_kfp_is_not() -> None:
    out = io.StringIO()
    shown = _StepOutput(out)
    for at in range(0, len(BY_KFP), 7):  # as it comes: in pieces
        shown.write(BY_KFP[at : at + 7])
    assert out.getvalue().splitlines() == [
        "07:10:00 train",
        "    sft        20/20  2:36 < 0:00  nll 0.418",
        "07:12:50 evaluate",
        "    rolecast: runs/demo has no sft model yet",
        "07:12:51.118 - ERROR - Task 'evaluate' finished with status FAILURE",
    ]
    assert shown.error == "runs/demo has no sft model yet"
