"""The bucket that the lease is kept in: made where there is none, checked where there is one.

What lives here: its configuration. What may not: the lease (``controller.leader``).
"""

from __future__ import annotations

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StorageType

from events.errors import SlotbusError


class LeaseUnusable(SlotbusError):
    """The lease's bucket can't be used as it is; an operator has to act."""


async def ensure_bucket(js: JetStreamContext, bucket: str, replicas: int) -> bool:
    """Makes the lease's bucket where there is none, and says whether it did. Raises
    LeaseUnusable for one that can't serve, nats.errors.Error."""
    try:
        info = await js.stream_info(f"KV_{bucket}")
    except nats.js.errors.NotFoundError:
        # Stored in files: a restart of the server must not hand out a held lease.
        await js.create_key_value(
            KeyValueConfig(
                bucket=bucket,
                description="who leads this slotbus",
                history=1,
                storage=StorageType.FILE,
                replicas=replicas,
            )
        )
        return True
    if not info.config.allow_msg_ttl:
        raise LeaseUnusable(
            f"the bucket {bucket} was made without TTLs (a nats-server before "
            "2.11?): delete it and start again"
        )
    return False
