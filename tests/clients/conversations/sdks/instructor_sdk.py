"""Instructor, by its modes: python instructor_sdk.py URL"""

import sys
import unittest
from enum import Enum

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

URL = sys.argv.pop()


class Unit(Enum):
    """Of temperatures."""

    C = "c"
    F = "f"


class Report(BaseModel):
    """What the model is to say."""

    city: str = Field(description="a name")
    tags: set[str]
    highs: dict[Unit, int]


REPORT = '{"city": "Oslo", "tags": ["wet"], "highs": {"c": 3}}'
TEXT = {"role": "user", "content": f"[[say {REPORT}]]"}
CALL = {"role": "user", "content": f"[[call Report {REPORT}]]"}
MODES = {
    "TOOLS": CALL,
    "JSON": TEXT,
    "JSON_SCHEMA": TEXT,
    "MD_JSON": {"role": "user", "content": f"[[say ```json\n{REPORT}\n```]]"},
    "RESPONSES_TOOLS": CALL,
}


class Modes(unittest.TestCase):
    """Structured output."""

    def test_all(self):
        for mode, message in MODES.items():
            with self.subTest(mode=mode):
                openai = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
                client = instructor.from_openai(openai, mode=getattr(instructor.Mode, mode))
                report = client.chat.completions.create(
                    model="scripted", response_model=Report, messages=[message], max_retries=1
                )
                self.assertEqual((report.tags, report.highs), ({"wet"}, {Unit.C: 3}))


unittest.main()
