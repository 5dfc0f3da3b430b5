#include "client/top_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "client/job_text.h"
#include "client/map_entry.h"
#include "client/progress.h"
#include "client/table.h"

namespace mk::client {
namespace {

using protocol::ModelStatus;
using protocol::RequestStatus;

constexpr size_t kBarWidth = 24;

std::string Number(const char* format, double value) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string RateText(double per_second) {
  return Number(per_second < 100 ? "%.1f" : "%.0f", per_second);
}

std::string TimeText(double seconds) {
  const double ms = seconds * 1e3;
  if (ms < 1) return Number("%.2f ms", ms);
  if (ms < 10) return Number("%.1f ms", ms);
  if (ms < 1000) return Number("%.0f ms", ms);
  return seconds < 60 ? Number("%.1f s", seconds) : DurationText(seconds);
}

std::string AgeText(uint64_t milliseconds_) {
  return DurationText(static_cast<double>(milliseconds_) / 1e3);
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

bool Waits(const RequestStatus& request) {
  return request.phase == "queued" || request.phase == "loading";
}

Color ColorOf(const std::string& state) {
  if (state == "decode" || state == "ready" || state == "working") return Color::kGreen;
  if (state == "prefill") return Color::kCyan;
  if (state == "queued" || state == "loading") return Color::kYellow;
  return Color::kRed;  // paused, replaced, and what goes wrong
}

class Writer {
 public:
  Writer(const TopView& view, const TopStyle& style)
      : view_(view), status_(view.status), style_(style), paint_(style.color) {}

  std::vector<std::string> Write() {
    Head();
    Memory();
    Tokens();
    Times();
    // Models give way to requests, but for a third of the room.
    const size_t models = std::min(status_.models.size() + 3, std::max<size_t>(3, Room() / 3));
    Gap();
    Requests(Room() - std::min(Room(), models));
    Gap();
    Jobs(Room() - std::min(Room(), models));
    Models(Room());
    return std::move(lines_);
  }

 private:
  TableRow Row() const { return {paint_, style_.columns}; }
  void Add(TableRow& row) { lines_.push_back(row.Take()); }
  // Lines that are left.
  size_t Room() const {
    if (style_.rows == 0) return SIZE_MAX;
    return style_.rows - std::min(style_.rows, lines_.size());
  }
  // Tall terminals have some to spare.
  void Gap() {
    if (style_.rows == 0 || style_.rows > 30) lines_.emplace_back();
  }

  void Head() {
    TableRow row = Row();
    std::string name = "microkimid " + status_.build_id;
    row.Left(name, DisplayWidth(Printable(name)), Color::kBold);
    std::string what = "pid " + std::to_string(status_.pid) + ", up " + AgeText(status_.uptime_ms);
    if (view_.rates) what += Number(", cpu %.0f %%", view_.rates->cpu_share * 100);
    what += ", resident " + BytesText(Entry(status_.memory, "resident"));
    if (status_.stopping) what += ", stopping";
    row.Rest(what + (style_.clock.empty() ? "" : "   " + style_.clock));
    Add(row);
    std::string more = std::to_string(status_.threads) + " threads, batch of up to " +
                       std::to_string(status_.max_batch) + ", " +
                       std::to_string(status_.connections) + " connections, " + status_.socket;
    Add(Row().Rest(more));
  }

  // Bytes that the ledger has promised, and for what, as parts of the budget.
  void Memory() {
    const uint64_t budget = Entry(status_.memory, "budget");
    const uint64_t used = Entry(status_.memory, "used");
    std::string bar = "[";
    std::string parts;
    double before = 0;
    constexpr std::array<char, 4> kMarks = {'#', '=', '+', '*'};
    size_t kind = 0;
    for (const auto& [name, bytes] : status_.memory) {
      if (name == "budget" || name == "used" || name == "resident") continue;
      const double share =
          budget > 0 ? static_cast<double>(bytes) / static_cast<double>(budget) : 0;
      before += share * kBarWidth;
      const auto end = static_cast<size_t>(std::clamp(before + 0.5, 0.0, double{kBarWidth}));
      if (end >= bar.size()) bar.append(end + 1 - bar.size(), kMarks[kind % kMarks.size()]);
      parts += (parts.empty() ? "" : ", ") + name + " " + BytesText(bytes);
      ++kind;
    }
    bar.append(kBarWidth + 1 - std::min(kBarWidth + 1, bar.size()), '-');
    bar += ']';
    TableRow row = Row();
    row.Left("memory", 7);
    const double full = budget > 0 ? static_cast<double>(used) / static_cast<double>(budget) : 0;
    row.Left(bar, kBarWidth + 2, full > 0.9 ? Color::kRed : Color::kGreen);
    row.Rest(BytesText(used) + " of " + BytesText(budget) + ": " + parts);
    Add(row);
  }

  void Tokens() {
    TableRow row = Row();
    row.Left("tokens", 7);
    if (view_.rates) {
      row.Left(RateText(view_.rates->generated_per_s) + "/s generated", 18, Color::kBold);
      std::string rest = RateText(view_.rates->prefill_per_s) + "/s read";
      if (view_.rates->expert_reads_saved > 0) {
        rest += Number(", %.0f %% of expert reads shared", view_.rates->expert_reads_saved * 100);
      }
      row.Rest(rest);
    } else {
      row.Rest(std::to_string(Entry(status_.counters, "generated_tokens")) + " generated, " +
               std::to_string(Entry(status_.counters, "prefill_tokens")) + " read so far");
    }
    Add(row);
  }

  void Times() {
    const std::string window = view_.window_s > 0 ? Number("of the last %.0f s", view_.window_s)
                                                  : std::string("since the daemon started");
    Add(Row().Left("", 11).Right("p50", 8).Right("p90", 8).Right("p99", 8).Rest(window));
    const auto line = [this](const char* name, const LatencySummary& times) {
      TableRow row = Row();
      row.Left(name, 11);
      for (const double time : {times.p50, times.p90, times.p99}) {
        row.Right(times.count > 0 ? TimeText(time) : "-", 8);
      }
      row.Rest(times.count > 0 ? std::to_string(times.count) + " times" : "");
      Add(row);
    };
    line("step", view_.step);
    line("token", view_.token);
    line("first token", view_.first_token);
    line("queue", view_.queue_wait);
  }

  // Not shown when there are none: most of the time.
  void Jobs(size_t room) {
    const auto& jobs = status_.jobs;
    if (jobs.empty() && status_.jobs_trouble.empty()) return;
    const auto running = static_cast<size_t>(std::count_if(
        jobs.begin(), jobs.end(), [](const auto& job) { return job.state == "running"; }));
    std::string title = "JOBS  " + std::to_string(running) + " running, " +
                        std::to_string(jobs.size() - running) + " waiting";
    if (!status_.jobs_trouble.empty()) title += "; not saved: " + status_.jobs_trouble;
    Add(Row().Rest(title, Cut::kEnd, Color::kBold));
    if (!jobs.empty()) {
      TableRow head = Row();
      head.Left("ID", protocol::kJobIdBytes).Left("KIND", 7).Left("STATE", 9).Right("DONE", 5);
      head.Right("ETA", 10).Right("AGE", 10).Rest("WHAT");
      Add(head);
    }
    const size_t shown = Shown(jobs.size(), room, 2);
    for (size_t i = 0; i < shown; ++i) Job(jobs[i]);
    More(jobs.size() - shown);
    Gap();
  }

  void Job(const protocol::JobStatus& job) {
    TableRow row = Row();
    row.Left(job.id, protocol::kJobIdBytes).Left(job.kind, 7);
    row.Left(job.state, 9, job.state == "running" ? Color::kGreen : Color::kYellow);
    row.Right(JobProgressText(job), 5).Right(JobEtaText(job), 10).Right(AgeText(job.age_ms), 10);
    row.Rest(job.what, Cut::kStart);
    Add(row);
  }

  void Models(size_t room) {
    const auto& models = status_.models;
    Add(Row().Rest("MODELS  " + std::to_string(models.size()), Cut::kEnd, Color::kBold));
    if (models.empty()) return;
    TableRow head = Row();
    head.Left("STATE", 8).Left("ARCH", 5).Right("MEMORY", 9).Right("FILE", 9);
    head.Left("PRECISION", 13).Right("USERS", 5).Left("HOLDERS", 18).Rest("MODEL");
    Add(head);
    const size_t shown = Shown(models.size(), room, 2);
    for (size_t i = 0; i < shown; ++i) Model(models[i]);
    More(models.size() - shown);
  }

  void Model(const ModelStatus& model) {
    std::string state = model.state;
    if (state == "loading") state = Number("%.0f %%", model.progress * 100);
    TableRow row = Row();
    row.Left(state, 8, ColorOf(model.state)).Left(model.architecture, 5);
    row.Right(BytesText(model.memory_bytes), 9).Right(BytesText(model.file_bytes), 9);
    row.Left(Joined(model.precisions.empty() ? model.preparing : model.precisions), 13);
    row.Right(std::to_string(model.users), 5).Left(HoldersOf(model), 18);
    row.Rest(model.path, Cut::kStart);
    Add(row);
  }

  // The clients whose requests are about the model.
  std::string HoldersOf(const ModelStatus& model) const {
    std::vector<std::string> names;
    for (const RequestStatus& request : status_.requests) {
      if (request.model != model.path) continue;
      if (std::find(names.begin(), names.end(), request.client) == names.end()) {
        names.push_back(request.client);
      }
    }
    return Joined(names);
  }

  void Requests(size_t room) {
    const auto& requests = status_.requests;
    const auto waiting =
        static_cast<size_t>(std::count_if(requests.begin(), requests.end(), Waits));
    Add(Row().Rest("REQUESTS  " + std::to_string(requests.size() - waiting) + " running, " +
                       std::to_string(waiting) + " waiting",
                   Cut::kEnd, Color::kBold));
    if (requests.empty()) return;
    TableRow head = Row();
    head.Left("CLIENT", 14).Left("OP", 6).Left("STATE", 9).Right("PROMPT", 13).Right("TOKENS", 7);
    head.Right("TOK/S", 7).Right("AGE", 10).Right("MEMORY", 9).Rest("MODEL");
    Add(head);
    const size_t shown = Shown(requests.size(), room, 2);
    size_t queue = 0;
    for (size_t i = 0; i < shown; ++i) {
      if (Waits(requests[i])) ++queue;
      Request(requests[i], i < view_.request_rates.size() ? view_.request_rates[i] : 0, queue);
    }
    More(requests.size() - shown);
  }

  void Request(const RequestStatus& request, double rate, size_t queue) {
    std::string state = request.phase;
    if (state == "queued") state.append(" ").append(std::to_string(queue));
    TableRow row = Row();
    row.Left(request.client, 14).Left(request.op, 6).Left(state, 9, ColorOf(request.phase));
    row.Right(std::to_string(request.prompt_done) + "/" + std::to_string(request.prompt_total), 13);
    row.Right(std::to_string(request.generated), 7).Right(rate > 0 ? RateText(rate) : "-", 7);
    row.Right(AgeText(request.age_ms), 10).Right(BytesText(request.state_bytes), 9);
    row.Rest(request.model, Cut::kStart);
    Add(row);
  }

  // How many of a list fit into the room beside its `heads` lines and the line that tells the rest.
  size_t Shown(size_t count, size_t room, size_t heads) const {
    const size_t places = room - std::min(room, heads);
    return count <= places ? count : places - std::min<size_t>(places, 1);
  }
  void More(size_t hidden) {
    if (hidden > 0) Add(Row().Rest("... and " + std::to_string(hidden) + " more"));
  }

  const TopView& view_;
  const protocol::StatusDone& status_;
  const TopStyle& style_;
  const Painter paint_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> TopText(const TopView& view, const TopStyle& style) {
  return Writer(view, style).Write();
}

std::vector<std::string> TopWaitingText(const protocol::Error& trouble, const std::string& socket,
                                        const TopStyle& style) {
  const Painter paint(style.color);
  std::vector<std::string> lines;
  const auto add = [&](std::string_view text, Color color) {
    lines.push_back(TableRow(paint, style.columns).Rest(text, Cut::kEnd, color).Take());
  };
  add("waiting for a daemon on " + socket + (style.clock.empty() ? "" : "   " + style.clock),
      Color::kBold);
  add(trouble.message, Color::kYellow);
  if (!trouble.hint.empty()) add(trouble.hint, Color::kNone);
  return lines;
}

}  // namespace mk::client
