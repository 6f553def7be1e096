#include "wires.h"

#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "receiver.h"
#include "transmitter.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23  // Linux 4.20; headers may be older than the kernel
#endif

namespace paceline::nic {
namespace {

constexpr size_t kReads = 16, kReceives = 64, kSends = 256;  // frames of one batch
constexpr size_t kSlowReads = 1, kSlowReceives = 8;          // where the engine has a rate: a batch waits until all of it is through
constexpr int kReceiveBuffer = 16 << 20;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

int open_tap(const std::string& name) {
    const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tap < 0) fail("/dev/net/tun");
    ifreq request{};
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    if (ioctl(tap, TUNSETIFF, &request) < 0) fail("TAP interface " + name);
    if (ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN) < 0) fail("offloads of " + name);
    return tap;
}

// With `receives` for what comes from the wire, else for what goes there.
int open_wire(const std::string& name, bool receives, size_t send_buffer) {
    const int wire = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (wire < 0) fail("packet socket");
    const auto set = [&](int level, int option, int value) { return setsockopt(wire, level, option, &value, sizeof value); };
    if (set(SOL_PACKET, PACKET_VNET_HDR, 1) < 0) fail("offloads of " + name);
    if (receives) {
        set(SOL_SOCKET, SO_RCVBUFFORCE, kReceiveBuffer);
        if (set(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) < 0) fail("packet socket of " + name);
    } else {
        set(SOL_SOCKET, SO_SNDBUF, int(send_buffer / 2));  // the kernel doubles it
    }
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = receives ? htons(ETH_P_ALL) : 0;
    address.sll_ifindex = int(if_nametoindex(name.c_str()));
    if (!address.sll_ifindex) fail("interface " + name);
    if (bind(wire, reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) fail("interface " + name);
    packet_mreq request{};
    request.mr_ifindex = address.sll_ifindex;
    request.mr_type = PACKET_MR_PROMISC;
    if (receives && setsockopt(wire, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request, sizeof request) < 0) fail("interface " + name);
    return wire;
}

// The other thread cannot do without this one.
[[noreturn]] void end(const char* what) {
    std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
    std::_Exit(1);
}

void wait_for(int file, short events) {
    pollfd one{file, events, 0};
    while (poll(&one, 1, -1) < 0)
        if (errno != EINTR) end("poll");
}

// Blocks while the wire's queue is full: the host's sockets then wait, nothing is lost. What the wire refuses (a pulled cable) is.
void send_all(int wire, std::vector<Frame>& frames, SentCounts& counts) {
    mmsghdr messages[kSends] = {};
    iovec parts[kSends][2];
    for (size_t first = 0; first < frames.size();) {
        const size_t count = std::min(kSends, frames.size() - first);
        for (size_t i = 0; i < count; i++) {
            Frame& frame = frames[first + i];
            parts[i][0] = {&frame.offload, sizeof frame.offload};
            parts[i][1] = {const_cast<uint8_t*>(frame.data), frame.size};
            messages[i].msg_hdr.msg_iov = parts[i];
            messages[i].msg_hdr.msg_iovlen = 2;
        }
        const int sent = sendmmsg(wire, messages, unsigned(count), 0);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) counts.dropped.add();
        first += sent > 0 ? size_t(sent) : 1;
    }
}

[[noreturn]] void transmit_all(int tap, int wire, size_t reads, Transmitter& transmitter, SentCounts& counts) {
    std::vector<uint8_t> memory(kReads * kMostFrame);
    Batch batch;
    for (;;) {
        wait_for(tap, POLLIN);
        batch.clear();
        bool more = true;
        for (size_t i = 0; i < reads && more && !batch.full(); i++) {
            Frame frame{{}, memory.data() + i * kMostFrame, 0};
            iovec parts[2] = {{&frame.offload, sizeof frame.offload}, {const_cast<uint8_t*>(frame.data), kMostFrame}};
            const ssize_t bytes = readv(tap, parts, 2);
            more = bytes >= ssize_t(sizeof frame.offload);
            if (bytes < 0 && errno != EAGAIN && errno != EINTR) end("TAP interface");
            if (!more) break;
            frame.size = size_t(bytes) - sizeof frame.offload;
            transmitter.transmit(frame, batch);
        }
        send_all(wire, batch.frames, counts);
    }
}

void write_all(int tap, std::vector<Frame>& frames, ReceivedCounts& counts) {
    for (Frame& frame : frames) {
        iovec parts[2] = {{&frame.offload, sizeof frame.offload}, {const_cast<uint8_t*>(frame.data), frame.size}};
        ssize_t wrote;
        while ((wrote = writev(tap, parts, 2)) < 0 && (errno == EAGAIN || errno == EINTR))
            if (errno == EAGAIN) wait_for(tap, POLLOUT);
        if (wrote < 0) counts.dropped.add();
    }
}

[[noreturn]] void receive_all(int tap, int wire, size_t receives, Receiver& receiver, ReceivedCounts& counts) {
    std::vector<uint8_t> memory(kReceives * kMostFrame);
    Offload offloads[kReceives];
    mmsghdr messages[kReceives] = {};
    iovec parts[kReceives][2];
    for (size_t i = 0; i < kReceives; i++) {
        parts[i][0] = {&offloads[i], sizeof offloads[i]};
        parts[i][1] = {memory.data() + i * kMostFrame, kMostFrame};
        messages[i].msg_hdr.msg_iov = parts[i];
        messages[i].msg_hdr.msg_iovlen = 2;
    }
    Batch batch;
    for (;;) {
        const int count = recvmmsg(wire, messages, unsigned(receives), MSG_WAITFORONE, nullptr);
        if (count < 0) {
            if (errno != EINTR && errno != ENETDOWN) end("packet socket");
            continue;
        }
        batch.clear();
        for (int i = 0; i < count; i++) {
            const size_t bytes = messages[i].msg_len;
            if (bytes < sizeof(Offload) || messages[i].msg_hdr.msg_flags & MSG_TRUNC) {
                counts.dropped.add();
                continue;
            }
            receiver.receive({offloads[i], static_cast<uint8_t*>(parts[i][1].iov_base), bytes - sizeof(Offload)}, batch);
            if (!batch.full()) continue;
            receiver.finish(batch);
            write_all(tap, batch.frames, counts);
            batch.clear();
        }
        receiver.finish(batch);
        write_all(tap, batch.frames, counts);
        tpacket_stats lost{};
        socklen_t size = sizeof lost;
        if (count == int(receives) && !getsockopt(wire, SOL_PACKET, PACKET_STATISTICS, &lost, &size)) counts.dropped.add(lost.tp_drops);
    }
}

}  // namespace

void run(const Wires& wires, const Codec& codec, Statistics* statistics) {
    setpriority(PRIO_PROCESS, 0, -20);  // a card of silicon waits for no process; where it is not allowed, this one does
    const int tap = open_tap(wires.tap);
    const int out = open_wire(wires.wire, false, wires.send_buffer), in = open_wire(wires.wire, true, 0);
    Transmitter transmitter(codec, wires.mtu, &statistics->sent, wires.bytes_per_s);
    Receiver receiver(codec, true, &statistics->received, wires.bytes_per_s);
    const bool slow = wires.bytes_per_s > 0;
    std::thread back([&] { receive_all(tap, in, slow ? kSlowReceives : kReceives, receiver, statistics->received); });
    statistics->ready.set(1);
    transmit_all(tap, out, slow ? kSlowReads : kReads, transmitter, statistics->sent);
}

}  // namespace paceline::nic
