// niah: needles in a haystack, each the secret code of a name, each asked for once (multi-key retrieval).
#pragma once

#include "tasks/task.h"

namespace kveval {

Task niah_task();

}  // namespace kveval
