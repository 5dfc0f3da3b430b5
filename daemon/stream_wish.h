// How a model's experts are held: all of them in memory, or streamed from its file.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/model/model.h"
#include "protocol/messages.h"

namespace mk::daemon {

enum class StreamMode : uint8_t {
  kAuto,  // what does not fit into the memory budget is streamed
  kOn,
  kOff,
};
// "auto", "on", "off".
std::string_view StreamModeName(StreamMode mode);
std::optional<StreamMode> ParseStreamMode(std::string_view name);

// The daemon's setting. `options.budget` 0: what is free.
struct StreamSettings {
  StreamMode mode = StreamMode::kAuto;
  StreamOptions options;
  std::string hot_set_folder;  // see LoadOptions
};

// The settings for one model: the daemon's, but for what a request says.
StreamSettings WithWish(StreamSettings settings, const protocol::StreamWish& wish);

// Whether a model that was loaded so would have to be loaded again to be as a request wants it.
// A request that wants nothing takes it as it is.
bool Contradicts(const protocol::StreamWish& wish, const Model& model);

// Whether there is something for shadows to stand in for: not where all experts are in memory.
// not_found when the model is streamed and has none.
protocol::Result<bool> HasShadows(const Model& model);

// What a run asks of shadows, on a model that is there: changed to nothing where all experts are in
// memory. bad_request for what does not go together, not_found when the model has none.
protocol::Status CheckShadows(protocol::RunArgs& args, const Model& model);

// How it is streamed, for status; nothing when all experts are in memory.
std::optional<protocol::StreamStatus> StreamStatusOf(const Model& model);

// What has happened on a model since `before`.
std::optional<protocol::StreamUse> StreamUseSince(const std::optional<StreamStats>& before,
                                                  const Model& model);

}  // namespace mk::daemon
