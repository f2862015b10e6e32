"""What lines, directory and form say: short phrasings, at least four of each; the seed picks one."""

from __future__ import annotations

PHRASES: dict[str, tuple[str, ...]] = {
    "found": (
        "{company}, {industry}: {departments}",
        "{company} ({industry}): {departments}",
        "{industry}, {company}: {departments}",
        "{company} is {industry}: {departments}",
    ),
    "not_found": (
        "not found, try {names}",
        "unknown company, try {names}",
        "no such company, try {names}",
        "nothing found, try {names}",
    ),
    "form": (
        "{values}",
        "given: {values}",
        "customer: {values}",
        "here: {values}",
    ),
    "unavailable": (
        "no {fields}",
        "without {fields}",
        "lacks {fields}",
        "not {fields}",
    ),
    "form_already_submitted": (
        "only one form",
        "form already used",
        "no second form",
        "the form was used",
    ),
    "form_too_long": (
        "too long, at most {limit} fields",
        "at most {limit} fields",
        "form holds {limit} fields at most",
        "too many fields, {limit} at most",
    ),
    "served": (
        "{department}: {request} done",
        "{department} served {request}",
        "{request} done by {department}",
        "{department} did {request}",
    ),
    "auth_missing": (
        "{department} needs {fields}",
        "{department}: needs {fields}",
        "{department} asks for {fields}",
        "{department} wants {fields}",
    ),
    "auth_unnamed": (
        "{department} needs more",
        "{department}: not enough",
        "{department} asks for more",
        "{department} wants more",
    ),
    "auth_mismatch": (
        "{department}: wrong {fields}",
        "{department} refused {fields}",
        "{department}: {fields} is wrong",
        "{department}: no match for {fields}",
    ),
    "fabricated_auth": (
        "{department}: {fields} not from the customer",
        "{department} refused made-up {fields}",
        "{department}: {fields} was made up",
        "{department}: invented {fields}",
    ),
    "wrong_department": (
        "not {department}, try {right}",
        "{right} does that",
        "wrong line, try {right}",
        "that is {right}",
    ),
    "transferred": (
        "passed to {department}.",
        "moved to {department}.",
        "sent on to {department}.",
        "transfer to {department}.",
    ),
    "locked": (
        "{department} is locked",
        "{department}: locked",
        "{department} takes no more calls",
        "locked out of {department}",
    ),
    "invalid_number": (
        "invalid number",
        "no such number",
        "number not in use",
        "wrong number",
    ),
    "unknown_request": (
        "unknown request",
        "no such request",
        "which request?",
        "request not known",
    ),
    "parser": (
        "error: {problem}",
        "invalid: {problem}",
        "refused: {problem}",
        "not run: {problem}",
    ),
}
