#!/usr/bin/env python3
"""Handles and references as text; errors as exceptions."""
import errno

from fakedaemon import *

BIG = (1 << 128) - 1


def test_a_handle_is_its_decimal_form():
    for n in (0, 1, 1 << 64, BIG):
        h = rv.Handle.parse(str(n))
        assert str(h) == str(n) and h == rv.Handle(n >> 64, n & (1 << 64) - 1)
    assert rv.Handle.parse("000" + str(BIG)) == rv.Handle.parse(str(BIG))


def test_what_is_no_handle_is_refused():
    for text in ("", "+1", "-1", " 1", "1 ", "0x10", "1_0", "\u0661", "1\n", "rv://"):
        assert raises(rv.InvalidError, rv.Handle.parse, text).errno == errno.EINVAL
    for text in (str(BIG + 1), "9" * 39, "1" * 5000):
        assert raises(rv.TooLongError, rv.Handle.parse, text).errno == errno.ERANGE


def test_a_reference_is_written_as_it_was_read():
    for text in ("rv://127.0.0.1:7471/5", "rv://node-1.example:1/340282366920938463463374607431768211455",
                 "rv://[::1]:65535/7", "rv://[fe80::1%eth0]:9/7", "12345"):
        assert str(rv.Ref.parse(text)) == text
    assert rv.Ref.parse("rv://[::1]:9/7") == rv.Ref(rv.Handle(0, 7), "::1", 9)


def test_what_is_no_reference_is_refused():
    for text in ("rv://", "rv:///5", "rv://host/5", "rv://host:/5", "rv://host:0/5", "rv://host:65536/5", "rv://host:9",
                 "rv://host:9/", "rv://host:9/x", "rv://[::1:9/5", "rv://::1:9/5", "rv://[::1]9/5", "rv://ho st:9/5",
                 "rv://h;rm:9/5", "http://host:9/5", "rv://host:+9/5", "rv://host:123456/5", "rv://%s:9/5" % ("h" * 256)):
        raises(rv.InvalidError, rv.Ref.parse, text)


def test_each_errno_has_its_class_and_its_words():
    from rv.errors import error
    for code, kind, base in ((errno.ENOENT, rv.NotFoundError, LookupError), (errno.ETIMEDOUT, rv.TimedOutError, TimeoutError),
                             (errno.ENOTCONN, rv.NotConnectedError, ConnectionError),
                             (errno.EPERM, rv.NotPermittedError, PermissionError),
                             (errno.EINVAL, rv.InvalidError, ValueError), (errno.EKEYREVOKED, rv.LeaseLostError, OSError)):
        e = error(-code, "the words")
        assert type(e) is kind and isinstance(e, base) and e.errno == code and e.strerror == "the words"
        assert "the words" in str(e) and errno.errorcode[code] in str(e)
    assert type(error(errno.EIO)) is rv.RvError and error(errno.EIO).strerror


def test_the_halves_of_a_handle_are_checked_before_they_are_packed():
    from rv.ref import as_ref
    for bad in (rv.Handle(1 << 64, 1), rv.Handle(1, -1), rv.Ref(rv.Handle(1, 1), "h", 1 << 16), 5, None, b"5"):
        raises(rv.InvalidError, as_ref, bad)


main(globals())
