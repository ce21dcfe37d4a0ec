"""A misspelt attribute of a public object is refused: `js.publish_async_max_pendng = 9` is no silent no-op."""

from __future__ import annotations

import enum
import inspect

import pytest

import jetstream_sync
from jetstream_sync import errors

# Errors are Python's own objects, and enumerations are made by Python's own machinery.
CLASSES = {
    name: value
    for name, value in vars(jetstream_sync).items()
    if name in jetstream_sync.__all__ and inspect.isclass(value) and not issubclass(value, (Exception, enum.Enum))
}


@pytest.mark.parametrize("name", CLASSES)
def test_objects_of_public_classes_have_no_dict(name: str) -> None:
    """Without a `__dict__` an object has the attributes of its class, and no other can be set."""
    cls = CLASSES[name]
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    refuses = cls.__setattr__ is not object.__setattr__
    assert frozen or refuses or not any("__dict__" in vars(base) for base in cls.__mro__)


def test_public_classes_are_found() -> None:
    """The test above sees what it is meant to see."""
    assert {"Connection", "JetStream", "Stream", "Consumer", "OrderedConsumer", "MessageStream"} <= set(CLASSES)
    assert {"ConsumeContext", "MessageBatch", "Subscription", "PushSubscription", "PullSubscription"} <= set(
        CLASSES
    )
    assert not set(errors.__all__) & set(CLASSES)
