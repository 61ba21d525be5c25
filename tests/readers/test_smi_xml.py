"""nvidia-smi -q -x: versions, several documents, hostile ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smi_samples import MIB, read, rows

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Thu Jan  1 00:00:00 2026</timestamp>
  <driver_version>550.54.15</driver_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:19:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices><mig_device><index>0</index><gpu_instance_id>3</gpu_instance_id>
      <compute_instance_id>0</compute_instance_id>
      <fb_memory_usage><total>40192 MiB</total><used>12 MiB</used></fb_memory_usage></mig_device></mig_devices>
    <fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved><used>77410 MiB</used>
      <free>3598 MiB</free></fb_memory_usage>
    <bar1_memory_usage><total>131072 MiB</total><used>1 MiB</used></bar1_memory_usage>
    <utilization><gpu_util>98 %</gpu_util><memory_util>N/A</memory_util></utilization>
    <gpu_power_readings><average_power_draw>N/A</average_power_draw>
      <instant_power_draw>512.25 W</instant_power_draw></gpu_power_readings>
    <clocks><sm_clock>1755 MHz</sm_clock></clocks>
    <clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
      <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
    <processes><process_info><pid>5001</pid><type>C</type><process_name>python3</process_name>
      <used_memory>77000 MiB</used_memory></process_info>
      <process_info><pid>5002</pid><type>C</type><process_name>x</process_name>
      <used_memory>N/A</used_memory></process_info></processes>
  </gpu>
</nvidia_smi_log>
"""


def test_one_document():
    run = read(XML)
    (card,) = rows(run)
    assert card["total_bytes"] - card["reserved_bytes"] - card["used_bytes"] == card["free_bytes"]
    assert card["used_bytes"] == 77410 * MIB
    assert (card["device"], card["flags"], card["power_w"]) == (0, "sw_power_cap", 512.25)
    assert run.rows("mig")[0]["total_bytes"] == 40192 * MIB
    assert [p["used_bytes"] for p in run.rows("gpu_process")] == [77000 * MIB, None]


def test_documents_in_a_row_and_a_cut_one():
    run = read(XML + XML.replace("77410", "77500") + XML[:900])
    assert [r["used_bytes"] for r in rows(run)] == [77410 * MIB, 77500 * MIB]
    assert [p.id for _, p in run.problems] == ["input.truncated"]


def test_an_old_document_without_reserved():
    run = read(XML.replace("<reserved>551 MiB</reserved>", "").replace("clocks_event", "clocks_throttle"))
    (card,) = rows(run)
    assert "reserved_bytes" not in card
    assert card["flags"] == "sw_power_cap"


def test_a_lost_device():
    run = read(XML.replace("98 %", "GPU is lost").replace("77410 MiB", "Unknown Error"))
    assert set(rows(run)[0]["errors"].split()) == {"used", "util_ratio", "gpu_lost"}


BOMB = """<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<nvidia_smi_log><timestamp>&b;</timestamp></nvidia_smi_log>"""


@pytest.mark.parametrize(
    "text",
    [BOMB, XML[:500], "<nvidia_smi_log>" + "<a>" * 100 + "</nvidia_smi_log>", XML.replace("</gpu>", "")],
)
def test_refused_documents_are_skipped_with_a_reason(text):
    run = read(text)
    assert rows(run) == []
    assert run.skipped[0].reason


def test_sanitizer_xml():
    run = read(
        "<?xml version='1.0'?><ComputeSanitizerOutput><record><kind>memcheck</kind><what><text>Invalid read</text>"
        "</what><stack><frame><func>k</func><file>a.cu</file><line>3</line></frame></stack></record>"
        "</ComputeSanitizerOutput>"
    )
    (record,) = run.rows("sanitizer")
    assert (record["what"], record["kernel"], record["site"]) == ("Invalid read", "k", "a.cu:3")


@given(st.integers(0, len(XML)), st.binary(max_size=4))
def test_damage_never_raises(at, junk):
    raw = XML.encode()
    run = read(raw[:at] + junk + raw[at + len(junk) :])
    assert len(run.inputs) + len(run.skipped) >= 1
