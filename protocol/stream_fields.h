// The fields of stream_messages.h.

#pragma once

#include "protocol/field.h"
#include "protocol/stream_messages.h"

namespace mk::protocol {

template <>
struct Schema<StreamWish> {
  static constexpr auto fields = std::make_tuple(
      Optional("stream", &StreamWish::stream,
               "experts of a model that is not loaded yet: on, they stay in its file; off, all are "
               "read; auto, as the memory allows; empty: the daemon's setting",
               Rule{}.OneOf("|auto|on|off")),
      Optional("stream_memory", &StreamWish::stream_memory,
               "bytes for experts that stay in the file; 0: what is free"));
};

template <>
struct Schema<PrefetchStatus> {
  static constexpr auto fields = std::make_tuple(
      Required("issued", &PrefetchStatus::issued), Required("useful", &PrefetchStatus::useful),
      Required("late", &PrefetchStatus::late), Required("wasted", &PrefetchStatus::wasted),
      Required("skipped", &PrefetchStatus::skipped), Required("active", &PrefetchStatus::active));
};

template <>
struct Schema<StreamStatus> {
  static constexpr auto fields = std::make_tuple(
      Required("budget", &StreamStatus::budget),
      Required("cached_bytes", &StreamStatus::cached_bytes),
      Required("cached_experts", &StreamStatus::cached_experts),
      Required("all_bytes", &StreamStatus::all_bytes), Required("demands", &StreamStatus::demands),
      Required("hits", &StreamStatus::hits), Required("misses", &StreamStatus::misses),
      Required("joined", &StreamStatus::joined), Required("evictions", &StreamStatus::evictions),
      Required("reads", &StreamStatus::reads), Required("read_bytes", &StreamStatus::read_bytes),
      Required("failed_reads", &StreamStatus::failed_reads),
      Required("read_ms", &StreamStatus::read_ms), Required("stall_ms", &StreamStatus::stall_ms),
      Required("passes", &StreamStatus::passes), Required("shadowed", &StreamStatus::shadowed),
      Required("shadow_bytes", &StreamStatus::shadow_bytes),
      Required("policy", &StreamStatus::policy), Required("io", &StreamStatus::io),
      Required("prefetch", &StreamStatus::prefetch));
};

template <>
struct Schema<StreamUse> {
  static constexpr auto fields = std::make_tuple(
      Required("demands", &StreamUse::demands), Required("hits", &StreamUse::hits),
      Required("reads", &StreamUse::reads), Required("read_bytes", &StreamUse::read_bytes),
      Required("stall_ms", &StreamUse::stall_ms));
};

}  // namespace mk::protocol
