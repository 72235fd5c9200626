"""Machines by name, with the sources of their figures.

Bandwidths are bytes per second in one direction; latencies are what is left of a measured half round trip when each of
two hosts pays half of it. Figures were read in public copies and quotations of what is named; "recalled" means that no
source was at hand. What none gives (the processor's ``copy_bandwidth``, but for one machine) is left out, and so free.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncsim.cluster.hosts import Bandwidth, Host, Latency
from asyncsim.records import checked, register

Held = Annotated[int, Meta(ge=1, le=100_000)]


@register("piz_daint")
@checked
class PizDaint(Host):
    """A node of Piz Daint, CSCS: Cray XC50, one P100 PCIe, the machine of the WAGMA-SGD paper.

    9.607 GB/s and 1.30 us between two nodes, of host memory: CSCS's own reference figures for osu_bw and osu_latency
    (ReFrame, cscs-checks, 2021); Aries injects 10.2 GB/s (recalled). Of 384 nodes is a dragonfly group of the XC50
    (NeSI's notes on its architecture, 2018): ``racks`` with hosts = 384.

    ``copy_bandwidth`` is calibrated: an asynchronous parameter server makes .45 steps per second with 64 workers of
    ResNet-50, 102 MB (Li et al., Taming unbalanced training workloads, PPoPP 2020, table 2), which is 2.94 GB/s of
    gradients at the server, a third of what its NIC takes. So it says nothing independent of that figure; fitting the
    throughputs of the WAGMA-SGD paper gave about 3 GB/s for the same quantity.
    """

    bandwidth: Bandwidth = 9.607e9
    latency: Latency = 0.65e-6
    copy_bandwidth: Bandwidth = 2.94e9


@register("dgx1_v100")
@checked
class DGX1(Host):
    """NVIDIA DGX-1: eight V100 SXM2, NVLink 2, four InfiniBand EDR ports of 100 Gb/s.

    12 GB/s of each port and 120 of the 150 GB/s of NVLink are what NCCL counts on (src/graph/topo.h); 1 us between two
    hosts is a usual MPI figure for InfiniBand (Open MPI, issue 5808). NVLink joins some pairs of GPUs by one or two of
    six links only: a pair alone gets a third of this at most.
    """

    workers: Held = 8
    bandwidth: Bandwidth = 48e9
    latency: Latency = 0.5e-6
    link_bandwidth: Bandwidth = 120e9
    link_latency: Latency = 2e-6


@register("dgx_a100")
@checked
class DGXA100(Host):
    """NVIDIA DGX A100: eight A100, NVLink 3, eight InfiniBand HDR ports of 200 Gb/s.

    22.75 GB/s of each port as measured (nccl-tests, issue 100: 91 GB/s over four); 240 of the 300 GB/s of NVLink (NCCL,
    src/graph/topo.h; nccl-tests, issue 149). 1 us between two hosts as for the DGX-1.
    """

    workers: Held = 8
    bandwidth: Bandwidth = 182e9
    latency: Latency = 0.5e-6
    link_bandwidth: Bandwidth = 240e9
    link_latency: Latency = 2e-6


@register("dgx_h100")
@checked
class DGXH100(Host):
    """NVIDIA DGX H100: eight H100 SXM, NVLink 4, eight InfiniBand NDR ports of 400 Gb/s.

    48 GB/s of each port as achieved (nccl-tests, issue 267); 371 of the 450 GB/s of NVLink (NCCL, src/graph/topo.h; as
    measured: NCCL, issue 1264). 1.2 us between two hosts is recalled.
    """

    workers: Held = 8
    bandwidth: Bandwidth = 384e9
    latency: Latency = 0.6e-6
    link_bandwidth: Bandwidth = 371e9
    link_latency: Latency = 2e-6


@register("ethernet_10g")
@checked
class Ethernet10G(Host):
    """A node with 10 Gb/s Ethernet and one GPU: 9.71 Gb/s by iperf3 (ylxdzsw/hidup, V100 cloud nodes).

    25 us one way over the kernel's TCP is recalled; 10 us is a best case (Larsen, Sarangam and Huggahalli 2007).
    """

    bandwidth: Bandwidth = 1.214e9
    latency: Latency = 12.5e-6


@register("ethernet_25g")
@checked
class Ethernet25G(Host):
    """A node with 25 Gb/s Ethernet and one GPU: the line rate; 15 us one way over the kernel's TCP is recalled."""

    bandwidth: Bandwidth = 3.125e9
    latency: Latency = 7.5e-6


@register("ethernet_100g")
@checked
class Ethernet100G(Host):
    """A node with 100 Gb/s Ethernet and one GPU: 12 GB/s, as NCCL counts on (src/graph/topo.h); 12 us is recalled."""

    bandwidth: Bandwidth = 12e9
    latency: Latency = 6e-6


@register("aws_p3_2xlarge")
@checked
class AWSP32(Host):
    """AWS p3.2xlarge: one V100, up to 10 Gb/s (in bursts); 30 us one way over TCP in a placement group is recalled."""

    bandwidth: Bandwidth = 1.25e9
    latency: Latency = 15e-6


@register("aws_p3_16xlarge")
@checked
class AWSP316(Host):
    """AWS p3.16xlarge: eight V100 with NVLink 2, 25 Gb/s (AWS, 2017); latency as recalled for p3.2xlarge."""

    workers: Held = 8
    bandwidth: Bandwidth = 3.125e9
    latency: Latency = 15e-6
    link_bandwidth: Bandwidth = 120e9
    link_latency: Latency = 2e-6


@register("aws_p3dn_24xlarge")
@checked
class AWSP3dn(Host):
    """AWS p3dn.24xlarge: eight V100 with NVLink 2, 100 Gb/s with EFA.

    10 GB/s as measured between two (NCCL, issue 235); 17.2 us is what AWS keeps for osu_latency over EFA on c5n
    (aws-parallelcluster, integration tests).
    """

    workers: Held = 8
    bandwidth: Bandwidth = 10e9
    latency: Latency = 8.6e-6
    link_bandwidth: Bandwidth = 120e9
    link_latency: Latency = 2e-6


@register("aws_p4d_24xlarge")
@checked
class AWSP4d(Host):
    """AWS p4d.24xlarge: eight A100 with NVLink 3, 400 Gb/s with EFA.

    41.25 GB/s by osu_mbw_mr in a placement group (aws-parallelcluster, integration tests); latency as for p3dn.
    """

    workers: Held = 8
    bandwidth: Bandwidth = 41.25e9
    latency: Latency = 8.6e-6
    link_bandwidth: Bandwidth = 240e9
    link_latency: Latency = 2e-6


@register("gcp_a2_highgpu_8g")
@checked
class GCPA2(Host):
    """Google Cloud a2-highgpu-8g: eight A100 with NVLink 3, 100 Gb/s (Google's documentation, line rate).

    36 us one way: half of a ping in one zone (n1 machines, 2017).
    """

    workers: Held = 8
    bandwidth: Bandwidth = 12.5e9
    latency: Latency = 18e-6
    link_bandwidth: Bandwidth = 240e9
    link_latency: Latency = 2e-6


@register("gcp_n1_2v100")
@checked
class GCPN1(Host):
    """Google Cloud n1-standard-16 with two V100, as in the eager-SGD paper: 32 Gb/s outwards, 2 for each virtual CPU.

    36 us one way: half of a ping in one zone (2017). Its two GPUs talk over PCI Express, 12 GB/s (NCCL,
    src/graph/topo.h).
    """

    workers: Held = 2
    bandwidth: Bandwidth = 4e9
    latency: Latency = 18e-6
    link_bandwidth: Bandwidth = 12e9
    link_latency: Latency = 2e-6


@register("volunteer")
@checked
class Volunteer(Host):
    """A volunteer at home: 22.6 Mb/s up, 193.7 Mb/s down, 14 ms to the nearest test server and back.

    United States, fixed lines, medians at the end of 2022 (Ookla). Lines differ by a factor of ten and more: groups of
    workers with hosts of their own say so. Between two homes a continent adds 10 to 40 ms: ``Cluster.latency``.
    """

    bandwidth: Bandwidth = 2.83e6
    receive_bandwidth: Bandwidth = 24.2e6
    latency: Latency = 7e-3
