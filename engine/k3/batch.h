// The batches of K3 models.

#pragma once

#include "engine/arch/batch.h"
#include "engine/k3/sequence.h"

namespace mk::k3 {

using BatchItem = BatchItemOf<K3Sequence>;
using Batch = BatchOf<K3Sequence>;

}  // namespace mk::k3
