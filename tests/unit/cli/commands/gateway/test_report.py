"""The status report of a gateway: written atomically, read only for its holder."""

from __future__ import annotations

from pathlib import Path

from everthread.cli.commands.gateway import report as gateway_report


def test_the_report_of_another_gateway_is_ignored(tmp_path: Path) -> None:
    report = gateway_report.GatewayReport("1-A", 1.0, {"post": gateway_report.PlatformReport(False, "shut")}, taken=3)
    gateway_report.write_report(tmp_path, report)
    assert gateway_report.read_report(tmp_path, "1-A") == report
    assert gateway_report.read_report(tmp_path, "2-B") is None
    assert (tmp_path / gateway_report.FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / gateway_report.FILE).write_text("{")
    assert gateway_report.read_report(tmp_path, "1-A") is None
    assert [path.name for path in tmp_path.iterdir()] == [gateway_report.FILE], "no temporary file is left"


def test_a_failed_write_does_not_raise(tmp_path: Path) -> None:
    gateway_report.write_report(tmp_path / "nowhere", gateway_report.GatewayReport("1-A", 1.0))
