"""What the library assumes to be atomic: single operations that it uses from several threads without a lock.

CPython with the GIL runs a call into C as a whole, unless that calls Python code or waits. Nothing documents that,
so this module names each such assumption, and tests/threads/test_atomic.py tries each with many threads. It holds
on the interpreters that the tests run on: CPython 3.10 to 3.13 with the GIL. On another one (3.14, a
free-threaded build) run that test first; the package declares only what was run.

What every assumption rests on: keys are bytes, str or int, and what is removed by value compares by identity, so
no operation calls code written in Python. `x += 1` is never assumed: such counters have one writer, or a lock.

Nothing imports this module when a program runs.
"""

from __future__ import annotations

# What is assumed, by name, and where it is used first of all.
ASSUMPTIONS = {
    "deque_hand_over": """extend(), append(), appendleft() and popleft() of one deque, by many threads: each item
        comes out once, and what one thread puts in comes out in order. Mailbox, Waiters, take.loop.""",
    "deque_copy": """copy(), len() and clear() of a deque while other threads put and take: no error.
        Mailbox.snapshot, Refill's keep-alive.""",
    "deque_remove": """remove() of an item while other threads append() and popleft(): that item is removed, or
        ValueError raised. Waiters.""",
    "dict_pop_once": """Of many threads that pop(key, None) from a dict, one gets the value. Requests.pending,
        AsyncPublisher.pending.""",
    "dict_setdefault_once": """Of many threads that call setdefault(key, mine), all get the value of one.
        PullSubscription.""",
    "dict_listing": """list(d), list(d.values()) and d.copy() while other threads set and pop keys: no error, and
        every key that stays is there. Router.snapshot, Requests, Progress.""",
    "list_pop_once": """Of many threads that pop() the one element of a list, one gets it. DirectPhase.permit.""",
    "list_extend_map": """list.extend(map(f, …)) with a function of C is one step for signal handlers: what f
        returned is in the list when the handler runs, also when f raised in the end. DirectPhase,
        PlainTransport.flush_now, TLSTransport, Mailbox.close.""",
    "count_next": """next() of an itertools.count, by many threads: each number once. Link.next_inbox, Nuid.""",
    "lock_release": """A bare lock may be released by any thread; of many that release it, one succeeds and the
        others get RuntimeError. Wakeup, Slot.""",
    "attribute_store": """A store of one attribute is seen whole: the old value or the new. Slot, Refill.ended,
        Link.session.""",
}
