// Memory in words: what people are told when the budget is short.

#pragma once

#include <cstdint>
#include <string>

#include "daemon/model_registry.h"
#include "protocol/error.h"

namespace mk::daemon {

// "512 KiB", "300 MiB", "1.5 GiB".
std::string BytesText(uint64_t bytes);

// out_of_memory: `what` needs so many bytes, and neither what is free nor what could be freed by
// unloading idle models is enough. The numbers are in the details too.
protocol::Error OutOfMemory(const std::string& what, uint64_t bytes, const Ledger& ledger,
                            const ModelRegistry& registry);

}  // namespace mk::daemon
