#include "client/models_text.h"

#include "client/map_entry.h"
#include "client/progress.h"
#include "client/text_table.h"

namespace mk::client {
namespace {

using Align = TextTable::Align;

// "loaded: exact,q8", or nothing.
std::string PrecisionsText(const protocol::ModelEntry& model) {
  if (!model.loaded) return {};
  return model.precisions.empty() ? "loaded" : "loaded: " + Joined(model.precisions);
}

std::string StateText(const protocol::ModelStatus& model) {
  if (model.state != "loading") return model.state;
  return "loading " + std::to_string(static_cast<int>(model.progress * 100)) + " %";
}

// What of its experts is in memory: "all", or "512 MiB of 1.1 GiB".
std::string ExpertsText(const protocol::ModelStatus& model) {
  if (!model.stream) return model.state == "ready" ? "all" : "";
  return BytesText(model.stream->cached_bytes) + " of " + BytesText(model.stream->all_bytes);
}

// How long it stays: "pinned", "in use", "4 min 10 s", "for ever".
std::string StaysText(const protocol::ModelStatus& model) {
  if (model.pinned) return "pinned";
  if (model.users > 0) return "in use";
  if (model.expires_ms) return DurationText(static_cast<double>(*model.expires_ms) / 1e3);
  return model.state == "ready" ? "for ever" : "";
}

}  // namespace

std::string Joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string ModelsText(const protocol::ModelsDone& done) {
  if (done.models.empty()) {
    return "no models found; put NAME.bin into the models folder "
           "($XDG_DATA_HOME/microkimi/models)\n";
  }
  TextTable table{Align::kLeft, Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft};
  for (const auto& model : done.models) {
    table.Add({(model.is_default ? "* " : "  ") + model.name,
               model.architecture.empty() ? "?" : model.architecture, BytesText(model.file_bytes),
               PrecisionsText(model),
               model.path + (model.error.empty() ? "" : "  (unusable: " + model.error + ")")});
  }
  return table.Text();
}

std::string NamesText(const protocol::ModelsDone& done) {
  std::string text;
  for (const auto& model : done.models) text += model.name + "\n";
  return text;
}

std::string LoadedText(const protocol::StatusDone& status) {
  std::string text;
  if (!status.models.empty()) {
    TextTable table{Align::kLeft,  Align::kLeft, Align::kLeft, Align::kRight, Align::kLeft,
                    Align::kRight, Align::kLeft, Align::kLeft, Align::kLeft};
    table.Add({"STATE", "ARCH", "PRECISION", "WEIGHTS", "EXPERTS", "STATES", "STAYS", "HOLDERS",
               "MODEL"});
    for (const auto& model : status.models) {
      const bool loading = model.state == "loading";
      const std::string holders = Joined(model.holders, ", ");
      table.Add({StateText(model), model.architecture.empty() ? "?" : model.architecture,
                 Joined(loading ? model.preparing : model.precisions),
                 BytesText(Entry(model.memory, "weights")), ExpertsText(model),
                 BytesText(Entry(model.memory, "sequences")), StaysText(model),
                 holders.empty() ? "-" : holders, model.path});
    }
    text = table.Text();
  } else {
    text = "no model is loaded\n";
  }
  return text + "memory: " + BytesText(Entry(status.memory, "used")) + " of " +
         BytesText(Entry(status.memory, "budget")) + "\n";
}

Json LoadedJson(const protocol::StatusDone& status) {
  const Json all = ToJson(status);
  return {{"memory", all.at("memory")}, {"models", all.at("models")}};
}

}  // namespace mk::client
