// Fetching a catalogued checkpoint: runs scripts/fetch-model, which the program carries inside itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/weights.h"
#include "harness/commands/commands.h"

namespace kveval {

// Fetches what is not there yet and checks its SHA-256. The script says on stderr what and how much before it
// begins; with `print_paths` it prints where each file is on stdout. Throws Error{usage} for a name that is
// not in the catalogue, Error{run} when the fetch fails, Error{cancelled} when it was interrupted.
void pull_models(const std::vector<std::string>& names, bool print_paths, const Context& context);

// load_model, of a catalogued name that is not here yet after fetching it.
std::shared_ptr<const Model> load_or_pull(const std::string& model, const Context& context);

}  // namespace kveval
