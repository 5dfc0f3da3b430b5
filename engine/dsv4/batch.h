// The batches of DeepSeek-V4 models.

#pragma once

#include "engine/arch/batch.h"
#include "engine/dsv4/sequence.h"

namespace mk::dsv4 {

using BatchItem = BatchItemOf<Dsv4Sequence>;
using Batch = BatchOf<Dsv4Sequence>;

}  // namespace mk::dsv4
