// GenerateAll: a generation from start to end on the calling thread, for tools and tests.

#pragma once

#include <functional>

#include "engine/base/result.h"
#include "engine/generate/generation.h"
#include "engine/model/model.h"

namespace mk {

// Runs `generation` until it is finished and its sequence is up to the last emitted token. `sink`
// gets every step and may return false to cancel; it may be empty. Errors: those of Model::Forward
// and Generation::Accept.
Status GenerateAll(const Model& model, Executor& executor, Generation& generation,
                   const std::function<bool(const GenerationStep&)>& sink = {},
                   ForwardObserver* observer = nullptr);

}  // namespace mk
