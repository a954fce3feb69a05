// A page on paper shows what its folds hold; on the screen they are as before.
"use strict";
{
  const closed = new Set();
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) {
      closed.add(fold);
      fold.open = true;
    }
  });
  addEventListener("afterprint", () => {
    for (const fold of closed) fold.open = false;
    closed.clear();
  });
}
