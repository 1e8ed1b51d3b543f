"""JUnit XML of a verdict: one test case per rule, so that any CI shows a gate as it shows tests."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from evenhand.judge.verdict import RuleVerdict, Verdict
from evenhand.show.table import SIMULATED, clean

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(verdict: Verdict) -> bytes:
    """A failed rule is a failure; void, control failed and inconclusive are errors, since none of them is a pass."""
    cases = verdict.rules or [
        RuleVerdict(rule="gate", text="a gate has rules", status="void", reason="the gate has no rules: nothing was decided")
    ]
    failures = sum(rule.status == "fail" for rule in cases)
    errors = sum(rule.status not in ("fail", "pass") for rule in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}
    root = ElementTree.Element("testsuites", {"name": "evenhand", **counts})
    name = legal(f"evenhand gate {verdict.scenario}")
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, "timestamp": legal(verdict.judged_utc), **counts})
    properties = ElementTree.SubElement(suite, "properties")
    facts = {
        "run": verdict.run,
        "baseline": verdict.baseline,
        "candidate": verdict.candidate,
        "status": verdict.status,
        "exit_code": str(verdict.exit_code),
        "simulated": SIMULATED if verdict.simulated else "no",
    }
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=name, value=legal(value))
    for rule in cases:
        case = ElementTree.SubElement(
            suite, "testcase", classname=legal(f"evenhand.{verdict.scenario}"), name=legal(rule.text), time="0"
        )
        if rule.status != "pass":
            kind = "failure" if rule.status == "fail" else "error"
            element = ElementTree.SubElement(case, kind, type=rule.status, message=legal(f"{rule.status}: {rule.reason}"))
            element.text = legal("\n".join([rule.reason, *(r.text for r in verdict.reasons)]))
        else:
            ElementTree.SubElement(case, "system-out").text = legal(rule.reason)
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def legal(text: str) -> str:
    """Text without what XML 1.0 forbids and without control characters; lines stay."""
    return _ILLEGAL.sub("", "\n".join(clean(line) for line in text.split("\n")))
