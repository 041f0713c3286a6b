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


class Place(BaseModel):
    """What the model is to say where instructor says `strict`."""

    city: str = Field(description="a name")
    tags: list[str]


class Report(Place):
    """What the model is to say."""

    tags: set[str]
    highs: dict[Unit, int]


PLACE = '{"city": "Oslo", "tags": ["wet"]}'
REPORT = '{"city": "Oslo", "tags": ["wet"], "highs": {"c": 3}}'
TEXT = {"role": "user", "content": f"[[say {REPORT}]]"}
CALL = {"role": "user", "content": f"[[call Report {REPORT}]]"}
MODES = {
    "TOOLS": (Report, CALL),
    "JSON": (Report, TEXT),
    "JSON_SCHEMA": (Report, TEXT),
    "MD_JSON": (Report, {"role": "user", "content": f"[[say ```json\n{REPORT}\n```]]"}),
    "RESPONSES_TOOLS": (Place, {"role": "user", "content": f"[[say {PLACE}]]"}),
}


class Modes(unittest.TestCase):
    """Structured output."""

    def test_all(self):
        for mode, (kind, message) in MODES.items():
            with self.subTest(mode=mode):
                openai = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
                client = instructor.from_openai(openai, mode=getattr(instructor.Mode, mode))
                said = client.chat.completions.create(
                    model="scripted", response_model=kind, messages=[message], max_retries=1
                )
                self.assertEqual(set(said.tags), {"wet"})


unittest.main()
