// All metrics of the daemon at this moment: what was counted, and what is looked up now.

#pragma once

#include "daemon/core.h"
#include "daemon/metric_sheet.h"
#include "daemon/status.h"

namespace mk::daemon {

// `connections`: those that are open. Belongs to the I/O thread.
MetricSheet CollectMetrics(const Core& core, const JobBoard& jobs, const Identity& identity,
                           size_t connections);

}  // namespace mk::daemon
