"""The environments by name: built-in ones, anybody's own as `module:name`, each also `+get_feedback`."""

import os
import sys
from functools import cache
from importlib import import_module

from env.feedback_tool.calls import NAME
from env.feedback_tool.offer import with_feedback_tool
from env.offer import EnvironmentOffer
from pipeline.errors import ConfigError

BUILT_IN = {
    "phone": "env.phone.offer:PHONE",
    "math": "env.math.offer:MATH",
    "code": "env.code.offer:CODE",
    "short": "env.short.offer:SHORT",
}
"""Name -> where its offer is; loaded when it is asked for."""


@cache
def offer_of(name: str) -> EnvironmentOffer:
    """Returns the offer of a name in `BUILT_IN`, or of `module:name`, also in the working directory.

    With `+get_feedback` after it, policies may ask for feedback.
    """
    if name.endswith(f"+{NAME}"):
        return with_feedback_tool(offer_of(name.removesuffix(f"+{NAME}")))
    module_name, colon, attribute = BUILT_IN.get(name, name).partition(":")
    where = f"tasks.environment = {name!r}"
    if not colon:
        raise ConfigError(
            f"{where} is not built in; allowed: {', '.join(BUILT_IN)}, or module:name of one of your own "
            f"(docs/environments.md), each also with +{NAME}"
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look there by itself
    try:
        offer = getattr(import_module(module_name), attribute)
    except ConfigError as error:  # of the offer itself
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:  # whatever a module of somebody else's does when it is loaded
        raise ConfigError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. Next: check that "
            f"`python -c 'import {module_name}'` works in this folder and defines {attribute}"
        ) from error
    if not isinstance(offer, EnvironmentOffer):
        raise ConfigError(f"{where} is a {type(offer).__name__}; allowed: an env.offer.EnvironmentOffer")
    return offer
