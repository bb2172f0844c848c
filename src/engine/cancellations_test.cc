#include "engine/cancellations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Cancellations, AreOfThoseThatHaveATicket) {
  const auto all = std::make_shared<Cancellations>();
  auto ticket = std::make_unique<Cancellations::Ticket>(all, 3);
  const Cancellations::Ticket other(all, 5);
  all->Cancel(4);
  EXPECT_THAT(all->TakeNew(), IsEmpty());
  all->Cancel(3);
  EXPECT_THAT(all->TakeNew(), ElementsAre(3));
  ticket.reset();
  all->Cancel(5);
  EXPECT_THAT(all->TakeNew(), ElementsAre(5));
}

// A service's client may cancel before the engine's thread has taken the request in.
TEST(Cancellations, WaitForARequestThatIsStillToArrive) {
  const auto all = std::make_shared<Cancellations>();
  const Cancellations::Ticket ticket(all, 3);
  all->Cancel(3);
  EXPECT_THAT(all->TakeNew(), ElementsAre(3));
  EXPECT_THAT(all->TakeNew(), IsEmpty());
  all->NoteArrival();
  EXPECT_THAT(all->TakeNew(), ElementsAre(3));
}

}  // namespace
}  // namespace headwise
