#include "client/top_view.h"

#include <algorithm>

namespace mk::client {
namespace {

constexpr std::chrono::seconds kRateWindow{3};
constexpr std::chrono::seconds kLatencyWindow{60};

double SecondsBetween(Deadline from, Deadline to) {
  return std::chrono::duration<double>(to - from).count();
}

// What one reading alone tells.
void AddAverages(TopView& view) {
  for (const protocol::RequestStatus& request : view.status.requests) {
    view.request_rates.push_back(request.tokens_per_second);
  }
}

Json ToJson(const LatencySummary& summary) {
  constexpr double kMs = 1e3;
  return {{"count", summary.count},
          {"p50_ms", summary.p50 * kMs},
          {"p90_ms", summary.p90 * kMs},
          {"p99_ms", summary.p99 * kMs}};
}

}  // namespace

// The oldest moment that is no further away than `time`, and not this one; for short intervals
// that is further away than the last one, which makes rates steady.
const TopHistory::Moment* TopHistory::Before(Deadline now, std::chrono::seconds time) const {
  const Moment* found = moments_.empty() ? nullptr : &moments_.back();
  for (auto it = moments_.rbegin(); it != moments_.rend() && now - it->taken <= time; ++it) {
    found = &*it;
  }
  return found;
}

void TopHistory::AddRates(const Moment& now, TopView& view) const {
  const Moment* before = Before(now.taken, kRateWindow);
  const double seconds = before == nullptr ? 0 : SecondsBetween(before->taken, now.taken);
  if (seconds <= 0) return AddAverages(view);
  const auto gain = [&](std::string_view name) {
    return std::max(0.0, now.reading.Value(name) - before->reading.Value(name));
  };
  TopView::Rates rates;
  rates.generated_per_s = gain("generated_tokens") / seconds;
  rates.prefill_per_s = gain("prefill_tokens") / seconds;
  rates.cpu_share = gain("process_cpu_seconds") / seconds;
  const double saved = gain("expert_reads_saved");
  if (saved > 0) rates.expert_reads_saved = saved / (saved + gain("expert_reads"));
  view.rates = rates;
  for (const protocol::RequestStatus& request : view.status.requests) {
    const auto then = before->tokens.find({request.client, request.id});
    const uint64_t tokens = now.tokens.at({request.client, request.id});
    const bool known = then != before->tokens.end() && then->second <= tokens;
    view.request_rates.push_back(known ? static_cast<double>(tokens - then->second) / seconds
                                       : request.tokens_per_second);
  }
}

TopView TopHistory::Take(DaemonPicture picture) {
  // Another daemon counts from zero.
  if (picture.status.pid != pid_) moments_.clear();
  pid_ = picture.status.pid;
  Moment now{picture.taken, MetricReading(picture.metrics), {}};
  for (const protocol::RequestStatus& request : picture.status.requests) {
    now.tokens[{request.client, request.id}] = request.prompt_done + request.generated;
  }
  TopView view;
  view.status = std::move(picture.status);
  AddRates(now, view);
  const Moment* before = Before(now.taken, kLatencyWindow);
  const MetricReading none;
  const MetricReading& then = before != nullptr ? before->reading : none;
  if (before != nullptr) view.window_s = SecondsBetween(before->taken, now.taken);
  view.step = Summarise(then, now.reading, "step_seconds");
  view.token = Summarise(then, now.reading, "token_seconds");
  view.first_token = Summarise(then, now.reading, "first_token_seconds");
  view.queue_wait = Summarise(then, now.reading, "queue_wait_seconds");
  moments_.push_back(std::move(now));
  while (moments_.size() > 1 && moments_.back().taken - moments_[1].taken >= kLatencyWindow) {
    moments_.pop_front();
  }
  return view;
}

Json TopJson(const TopView& view, const std::string& time) {
  Json json = {{"time", time}, {"rates", nullptr}};
  if (view.rates) {
    json["rates"] = {{"generated_tokens_per_s", view.rates->generated_per_s},
                     {"prefill_tokens_per_s", view.rates->prefill_per_s},
                     {"cpu_share", view.rates->cpu_share},
                     {"expert_reads_saved_share", view.rates->expert_reads_saved}};
  }
  json["latency"] = {{"window_s", view.window_s},
                     {"step", ToJson(view.step)},
                     {"token", ToJson(view.token)},
                     {"first_token", ToJson(view.first_token)},
                     {"queue_wait", ToJson(view.queue_wait)}};
  json["status"] = client::ToJson(view.status);
  for (size_t i = 0; i < view.request_rates.size(); ++i) {
    json["status"]["requests"][i]["tokens_per_s_now"] = view.request_rates[i];
  }
  return json;
}

}  // namespace mk::client
