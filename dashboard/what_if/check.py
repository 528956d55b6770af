"""What is wrong with a form, in the sentences of the command line, and which field each is about."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.runs.request import RunRequest
from scheduler.errors import UserError

from .query import Form
from .settings import settings


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        sentence: for people.
        setting: the setting it is about; empty where it is about another field, or about several.
    """

    sentence: str
    setting: str = ""


def faults_of(form: Form, allowed: Collection[str] = ()) -> list[Fault | None]:
    """For each variant the first thing that is wrong with it; None: nothing."""
    return [fault_of(request, allowed) for request in form.requests()]


def fault_of(request: Mapping[str, Any], allowed: Collection[str] = ()) -> Fault | None:
    """The first thing that is wrong with a request for a run; None: nothing."""
    try:
        RunRequest.of(request).check(allowed)
    except UserError as error:
        return Fault(str(error), _setting_in(str(error)))
    return None


def _setting_in(sentence: str) -> str:
    """The setting that a sentence is about: they begin with its name, or say that it is unknown."""
    words = re.findall(r"\w+", sentence.replace("cost model", "cost"))[:2]
    return next((word for word in words if word in settings()), "")
