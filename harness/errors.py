"""Errors whose text is already one sentence for the user; anything else is a bug and may show itself."""

from __future__ import annotations

from evenhand.boot.patch import PatchError
from evenhand.drive.prompts import PromptError
from evenhand.engines.base import EngineError
from evenhand.judge.rules import RuleError
from evenhand.judge.view import JudgeError
from evenhand.load import ScenarioError
from evenhand.resume import ResumeError
from evenhand.store import StoreError

KNOWN: tuple[type[Exception], ...] = (
    EngineError,
    JudgeError,
    PatchError,
    PromptError,
    ResumeError,
    RuleError,
    ScenarioError,
    StoreError,
)
