#include "daemon/stream_wish.h"

#include <array>

namespace mk::daemon {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"auto", "on", "off"};

double Milliseconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

}  // namespace

std::string_view StreamModeName(StreamMode mode) {
  return kNames[static_cast<size_t>(mode)];
}

std::optional<StreamMode> ParseStreamMode(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<StreamMode>(i);
  }
  return std::nullopt;
}

StreamSettings WithWish(StreamSettings settings, const protocol::StreamWish& wish) {
  if (const auto mode = ParseStreamMode(wish.stream)) settings.mode = *mode;
  if (wish.stream_memory > 0) {
    settings.options.budget = wish.stream_memory;
    if (wish.stream.empty()) settings.mode = StreamMode::kOn;
  }
  return settings;
}

bool Contradicts(const protocol::StreamWish& wish, const Model& model) {
  const std::optional<StreamStats> stats = model.stream_stats();
  if (model.info().experts == 0) return false;
  if (wish.stream_memory > 0 && stats) return stats->budget != wish.stream_memory;
  if (wish.stream == "on" || (wish.stream.empty() && wish.stream_memory > 0)) return !stats;
  return wish.stream == "off" && stats;
}

protocol::Result<bool> HasShadows(const Model& model) {
  const std::optional<StreamStats> stats = model.stream_stats();
  if (!stats || stats->shadow_bytes > 0) return stats.has_value();
  const std::string& path = model.info().path;
  return protocol::Fail(
      protocol::ErrorCode::kNotFound,
      stats->shadow_error.empty() ? path + " is streamed without shadows" : stats->shadow_error,
      "make them with `mk shadow " + path + "`, then load the model again");
}

protocol::Status CheckShadows(protocol::RunArgs& args, const Model& model) {
  using protocol::ErrorCode;
  if (args.spec_shadow == 0 && !args.stream_fallback) return {};
  const auto refuse = [](const std::string& what, const std::string& hint) {
    return protocol::Fail(ErrorCode::kBadRequest, what, hint);
  };
  if (args.stream_fallback && args.spec_shadow > 0) {
    return refuse("shadows are either guesses (spec_shadow) or stand-ins (stream_fallback)",
                  "leave out one of them");
  }
  if (args.spec_shadow > 0 && (args.spec > 0 || args.spec_rosa > 0)) {
    return refuse("spec_shadow does not go with spec or spec_rosa", "leave out one of them");
  }
  const bool looks = args.want_hidden || args.want_routes || args.want_hidden_stats ||
                     args.want_experts || !args.lens.empty();
  if (args.spec_shadow > 0 && looks) {
    return refuse("spec_shadow does not go with what shows every pass", "leave out spec_shadow");
  }
  if (args.stream_fallback &&
      (!args.session.empty() || !args.memory.empty() || !args.save.empty())) {
    return refuse("stream_fallback does not go with sessions and packs",
                  "their states would stay degraded; leave it out");
  }
  const auto shadows = HasShadows(model);
  if (!shadows) return protocol::Fail(shadows.error());
  if (!*shadows) {
    args.spec_shadow = 0;
    args.stream_fallback = false;
  }
  return {};
}

std::optional<protocol::StreamStatus> StreamStatusOf(const Model& model) {
  const std::optional<StreamStats> stats = model.stream_stats();
  if (!stats) return std::nullopt;
  protocol::StreamStatus status;
  status.budget = stats->budget;
  status.cached_bytes = stats->cached_bytes;
  status.cached_experts = stats->cached_experts;
  status.all_bytes = stats->all_bytes;
  status.demands = stats->demands;
  status.hits = stats->hits;
  status.misses = stats->misses;
  status.joined = stats->joined;
  status.evictions = stats->evictions;
  status.reads = stats->reads;
  status.read_bytes = stats->read_bytes;
  status.failed_reads = stats->failed_reads;
  if (stats->reads > 0) status.read_ms = Milliseconds(stats->read_ns / stats->reads);
  status.stall_ms = Milliseconds(stats->stall_ns);
  status.passes = stats->passes;
  status.shadowed = stats->shadowed;
  status.shadow_bytes = stats->shadow_bytes;
  status.policy = CachePolicyName(stats->policy);
  status.io =
      std::string(stats->uring ? "io_uring" : "threads") + (stats->direct ? ", direct" : "");
  for (size_t i = 0; i < kPrefetchSources; ++i) {
    const PrefetchStats& one = stats->prefetch[i];
    if (one.issued == 0 && one.skipped == 0) continue;
    status.prefetch[std::string(PrefetchSourceName(static_cast<PrefetchSource>(i)))] = {
        one.issued, one.useful, one.late, one.wasted, one.skipped, one.active};
  }
  return status;
}

std::optional<protocol::StreamUse> StreamUseSince(const std::optional<StreamStats>& before,
                                                  const Model& model) {
  const std::optional<StreamStats> now = model.stream_stats();
  if (!before || !now) return std::nullopt;
  return protocol::StreamUse{now->demands - before->demands, now->hits - before->hits,
                             now->reads - before->reads, now->read_bytes - before->read_bytes,
                             Milliseconds(now->stall_ns - before->stall_ns)};
}

}  // namespace mk::daemon
