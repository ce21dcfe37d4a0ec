"""The options of the data source: tables, no Spark."""

from __future__ import annotations

import pytest

from jetstream_sync.spark.identity import CALLER, PLANNER, TASK, identity_of
from jetstream_sync.spark.message_ids import TaskIdentity
from jetstream_sync.spark.options import ConnectionOptions, ReadOptions, Secret, WriteOptions
from jetstream_sync.spark.positions import Position, Positions
from tests.support.jwt import new_seed


def test_read_options_are_typed() -> None:
    """Text becomes numbers, flags and positions; names are taken in any case, Spark's own are passed over."""
    options = ReadOptions.parse(
        {
            "stream": "ORDERS",
            "SUBJECTS": "a.*, b.>",
            "startingoffsets": '{"seq": 5}',
            "minPartitions": "8",
            "failOnDataLoss": "FALSE",
            "checkpointLocation": "/tmp/x",
            "queryName": "q",
        }
    )
    assert options.streams == ("ORDERS",)
    assert options.subjects == ("a.*", "b.>")
    assert options.starting_offsets == Positions(Position(seq=5))
    assert options.min_partitions == 8
    assert options.fail_on_data_loss is False


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "stream"),
        ({"stream": ""}, "stream"),
        ({"stream": "A.B"}, "stream"),
        ({"stream": "S", "streem": "S"}, "streem"),
        ({"stream": "S", "path": "S"}, "path"),
        ({"stream": "S", "subjects": "a..b"}, "subjects"),
        ({"stream": "S", "subjects": "a,,b"}, "subjects"),
        ({"stream": "S", "startingOffsets": "yesterday"}, "startingOffsets"),
        ({"stream": "S", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"stream": "S", "startingOffsets": "latest", "endingOffsets": '{"seq": 3}'}, "endingOffsets"),
        ({"stream": "S", "minPartitions": "0"}, "minPartitions"),
        ({"stream": "S", "minPartitions": "1.5"}, "minPartitions"),
        ({"stream": "S", "maxMessagesPerTrigger": "-3"}, "maxMessagesPerTrigger"),
        ({"stream": "S", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"stream": "S", "domain": "d", "apiPrefix": "p"}, "apiPrefix"),
        ({"stream": "S", "apiPrefix": "p.>"}, "apiPrefix"),
        ({"stream": "S", "tlsKeyFile": "k"}, "tlsCertFile"),
        ({"stream": "S", "password": "hunter2"}, "user"),
        ({"stream": "S", "exactlyOnce": "true"}, "exactlyOnce"),
        ({"stream": "S", "inboxPrefix": "a.>"}, "inboxPrefix"),
        ({"stream": "S", "tlsFirst": "perhaps"}, "tlsFirst"),
        ({"stream": "S", "tlsHostname": ""}, "tlsHostname"),
        ({"stream": "S", "connectTimeout": "soon"}, "connectTimeout"),
        ({"stream": "S", "connectTimeout": "0"}, "connectTimeout"),
        ({"stream": "S", "user": "u", "password": "p", "passwordEnv": "P"}, "'password' or 'passwordEnv'"),
        ({"stream": "S", "passwordEnv": "P"}, "'passwordEnv' needs option 'user'"),
        ({"stream": "S", "token": "t", "tokenEnv": "T"}, "'token' or 'tokenEnv'"),
        ({"stream": "S", "credentials": "/c", "credentialsEnv": "C"}, "'credentials' or 'credentialsEnv'"),
        ({"stream": "S", "nkeySeedFile": "/n", "nkeySeedEnv": "N"}, "'nkeySeedFile' or 'nkeySeedEnv'"),
        ({"stream": "S", "credentialsEnv": "C", "nkeySeedEnv": "N"}, "'credentialsEnv' or 'nkeySeedEnv'"),
    ],
)
def test_read_options_name_what_is_wrong(options: dict[str, str], named: str) -> None:
    """An unknown option or a bad value is an error that names the option."""
    with pytest.raises(ValueError, match=named):
        ReadOptions.parse(options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxMessagesPerTrigger", "10"),
        ("minMessagesPerTrigger", "10"),
        ("deleteOnCommit", "true"),
        ("positionConsumer", "c"),
    ],
)
def test_batch_read_refuses_what_is_for_streaming(option: str, value: str) -> None:
    """A batch read has no triggers and no commits: what is about them would be ignored."""
    options = ReadOptions.parse({"stream": "S", option: value})
    with pytest.raises(ValueError, match=f"option '{option}' is for streaming queries only: a batch read .+"):
        options.for_batch()
    assert options.for_streaming() is options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingOffsets", '{"seq": 3}'),
        ("endingTimestamp", "5"),
        ("pushFilters", "true"),
    ],
)
def test_streaming_query_refuses_what_is_for_batch_reads(option: str, value: str) -> None:
    """A streaming query has no end, and gets no filters from Spark."""
    options = ReadOptions.parse({"stream": "S", option: value})
    with pytest.raises(ValueError, match=f"option '{option}' is for batch reads only: a streaming query .+"):
        options.for_streaming()
    assert options.for_batch() is options


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"subject": "a.*"}, "subject"),
        ({"exactlyOnce": "true"}, "markerSubject"),
        ({"markerSubject": "m"}, "exactlyOnce"),
        ({"maxPending": "none"}, "maxPending"),
        ({"publishTimeout": "0"}, "publishTimeout"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"epoch": "3"}, "'epoch' needs option 'writeId'"),
        ({"writeId": "w", "epoch": "-1"}, "'epoch'"),
        ({"writeId": "w", "epoch": "1.0"}, "'epoch'"),
        ({"writeId": "w", "epoch": str(2**63)}, "'epoch'"),
        ({"writeId": ""}, "'writeId'"),
        ({"writeId": " w"}, "'writeId'"),
        ({"writeId": "w/1"}, "'writeId'"),
        ({"writeId": "w\r\nX: y"}, "'writeId'"),
        ({"writeId": "w" * 201}, "'writeId'"),
    ],
)
def test_write_options_name_what_is_wrong(options: dict[str, str], named: str) -> None:
    """The same for writing."""
    with pytest.raises(ValueError, match=named):
        WriteOptions.parse(options)


def test_secrets_are_not_shown() -> None:
    """Neither the options nor an error about them show a secret; a URL may hold one, too."""
    secret = "hunter2"
    options = ConnectionOptions.parse(
        {"user": secret, "password": secret, "token": secret, "servers": f"nats://u:{secret}@h"}
    )
    assert secret not in repr(options)
    assert secret not in str(options)
    assert options.password == Secret(secret)
    for name in ("password", "token", "servers"):
        with pytest.raises(ValueError, match=name) as caught:
            ConnectionOptions.parse({name: ""})
        assert secret not in str(caught.value)
    with pytest.raises(ValueError) as caught:
        ConnectionOptions.parse({"passwort": secret})
    assert secret not in str(caught.value)


SEED = "SU" + "A" * 56
ENVIRONMENT = {"PASSWORD": "hunter2", "EMPTY": "", "BAD": "hunter2-malformed", "SEED": f" {new_seed()}\n"}
ENV_OPTIONS = ("passwordEnv", "tokenEnv", "credentialsEnv", "nkeySeedEnv")


@pytest.mark.parametrize("option", ENV_OPTIONS)
@pytest.mark.parametrize("given", ["hunter 2", "hunter-2", "$hunter", "", SEED])
def test_secret_in_place_of_its_variable_is_not_shown(option: str, given: str) -> None:
    """A secret that is given where the name of a variable belongs is refused and not repeated."""
    with pytest.raises(
        ValueError, match=f"option '{option}': must be the name of an environment variable"
    ) as caught:
        ConnectionOptions.parse({"user": "u", option: given})
    assert not given or given not in str(caught.value)


def test_nkey_seed_is_for_connection_only() -> None:
    """Spark shows the option in plans: a data source refuses it, connection() takes it."""
    assert ConnectionOptions.parse({"nkeySeed": SEED}).nkey_seed == Secret(SEED)
    for kind, more in ((ReadOptions, {"stream": "S"}), (WriteOptions, {"subject": "s"})):
        with pytest.raises(ValueError, match="use the option 'nkeySeedEnv'") as caught:
            kind.parse({"nkeySeed": SEED, **more})
        assert SEED not in str(caught.value)


@pytest.mark.parametrize("kind", [ReadOptions, WriteOptions])
def test_secret_in_place_of_its_file_is_not_shown(kind: type[ReadOptions | WriteOptions]) -> None:
    """The text of a .creds file and a seed, where a path belongs: Spark would show them in plans."""
    text = f"-----BEGIN NATS USER JWT-----\n{SEED}\n------END NATS USER JWT------\n"
    for name, given in (("credentials", text), ("nkeySeedFile", f"{SEED}\n")):
        with pytest.raises(ValueError, match=f"option '{name}':? must be the path of a file") as caught:
            kind.parse({"stream": "S", name: given})
        assert SEED not in str(caught.value)
    assert SEED not in repr(ConnectionOptions.parse({"credentials": text}))


@pytest.mark.parametrize("process", [PLANNER, TASK, CALLER])
@pytest.mark.parametrize("option", ENV_OPTIONS)
@pytest.mark.parametrize(("variable", "problem"), [("GONE", "is not set"), ("EMPTY", "is empty")])
def test_missing_variable_is_named(option: str, variable: str, problem: str, process: str) -> None:
    """The error names the option, the variable and the process that lacks it."""
    options = ConnectionOptions.parse({"user": "u", option: variable})
    with pytest.raises(ValueError) as caught:
        identity_of(options, ENVIRONMENT, process)
    assert str(caught.value) == f"option '{option}': the environment variable '{variable}' {problem} in {process}"


@pytest.mark.parametrize(
    ("option", "problem"),
    [("credentialsEnv", "the content of a .creds file"), ("nkeySeedEnv", "the nkey seed of a user")],
)
def test_malformed_variable_is_not_quoted(option: str, problem: str) -> None:
    """A variable with something else in it is an error that does not show what."""
    options = ConnectionOptions.parse({option: "BAD"})
    with pytest.raises(ValueError, match=f"option '{option}': .* 'BAD' does not hold {problem} in") as caught:
        identity_of(options, ENVIRONMENT, TASK)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


def test_secrets_come_from_the_environment() -> None:
    """The options hold the name of the variable, the identity what is in it; a seed may end with a line break."""
    options = ConnectionOptions.parse({"user": "u", "passwordEnv": "PASSWORD"})
    assert "hunter2" not in repr(options)
    assert identity_of(options, ENVIRONMENT, TASK)["password"] == "hunter2"
    seed = identity_of(ConnectionOptions.parse({"nkeySeedEnv": "SEED"}), ENVIRONMENT, TASK)["nkeys_seed_str"]
    assert seed == ENVIRONMENT["SEED"].strip()


@pytest.mark.parametrize(
    ("identity", "prefix"),
    [(TaskIdentity("q", 7, 2), "q/7/2/"), (TaskIdentity("w", None, 0), "w/0/")],
)
def test_message_ids_name_write_batch_and_partition(identity: TaskIdentity, prefix: str) -> None:
    """The prefix of a row's id stays the same when its task runs again."""
    assert identity.id_prefix == prefix


def test_marker_subject_is_one_token_per_part() -> None:
    """A name cannot break out of its token, and two names never share one."""
    assert TaskIdentity("0b7c-4", 1, 3).marker_subject("m") == "m.0b7c-4.3"
    names = ["a.b>c", "a_b_c", "a*b c"]
    subjects = {TaskIdentity(name, 1, 3).marker_subject("m") for name in names}
    assert len(subjects) == len(names)
    assert all(subject.count(".") == 2 and not set("*> ") & set(subject) for subject in subjects)


@pytest.mark.parametrize("url", ["nats://u:{s}@h", "nats://h?user=u&password={s}", "nats://h?token={s}"])
@pytest.mark.parametrize("kind", [ReadOptions, WriteOptions])
def test_credentials_in_a_url_are_refused(kind: type[ReadOptions | WriteOptions], url: str) -> None:
    """Spark shows the option `servers` in plans: what would be a secret there has options of its own."""
    with pytest.raises(ValueError, match="option 'servers'") as caught:
        kind.parse({"servers": url.format(s="hush"), "stream": "S"})
    assert "hush" not in str(caught.value)


def test_named_writes() -> None:
    """A name and an epoch; a streaming query has its own."""
    options = WriteOptions.parse({"writeid": "nightly load ü", "epoch": "0"})
    assert (options.write_id, options.epoch) == ("nightly load ü", 0)
    assert WriteOptions.parse({"writeId": "w"}).epoch is None
    assert WriteOptions.parse({}).for_streaming() == WriteOptions()
    with pytest.raises(ValueError, match="'writeId' is for batch writes"):
        options.for_streaming()
