"""Settings: a flag wins over its variable, which wins over the default; a bad value is one line that names both."""

from __future__ import annotations

from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.judge.settings import JudgeSettings
from rolecast.retriever.settings import RetrieverSettings
from rolecast.service.settings import ServiceSettings, read_settings

INDEX = {"ROLECAST_INDEX": "i"}


@pytest.mark.parametrize(
    ("flags", "environ", "port"),
    [
        ({}, {}, 8080),
        ({}, {"ROLECAST_PORT": "81"}, 81),
        ({"port": "82"}, {"ROLECAST_PORT": "81"}, 82),
        ({"port": None}, {"ROLECAST_PORT": "81"}, 81),
        ({}, {"ROLECAST_PORT": ""}, 8080),
        ({}, {"PORT": "81"}, 8080),
    ],
)
def test_flag_then_variable_then_default(flags: dict[str, Any], environ: dict[str, str], port: int) -> None:
    assert read_settings(ServiceSettings, flags, environ).port == port


@pytest.mark.parametrize(
    ("model", "environ", "said"),
    [
        (ServiceSettings, {"ROLECAST_PORT": "tcp://10.0.0.1:80"}, r"--port \(ROLECAST_PORT\) is 'tcp://10\.0\.0\.1:80'"),
        (ServiceSettings, {"ROLECAST_PORT": "65536"}, r"--port \(ROLECAST_PORT\) is '65536': input should be less than"),
        (ServiceSettings, {"ROLECAST_LOG_LEVEL": "loud"}, r"--log-level \(ROLECAST_LOG_LEVEL\) is 'loud'.*'debug'"),
        (RetrieverSettings, {}, "--index is missing; give it or set ROLECAST_INDEX"),
        (RetrieverSettings, {**INDEX, "ROLECAST_TOPK": "0"}, "--topk"),
        (RetrieverSettings, {**INDEX, "ROLECAST_KIND": "sparse"}, "--kind"),
        (JudgeSettings, {"ROLECAST_JUDGE_BACKEND": "oracle"}, "--judge-backend"),
        (JudgeSettings, {"ROLECAST_JUDGE_BACKEND": "openai"}, "needs ROLECAST_JUDGE_OPENAI_URL and ROLECAST_JUDGE_OPENAI_MODEL"),
    ],
)
def test_a_bad_setting_is_one_line_with_flag_and_variable(model: type[ServiceSettings], environ: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        read_settings(model, {}, environ)
    assert "\n" not in str(raised.value)
