// Keeps a page of `ablate ui` up to date: its line of state, and its contents once the server has newer ones.
(function () {
  "use strict";
  const SECONDS = 2;
  const live = () => document.querySelector(".live");

  async function answerOf(url) {
    const answer = await fetch(url, { cache: "no-cache" });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer;
  }

  const isOpen = () => [...document.querySelectorAll("main details")].map((each) => each.open);

  async function replace() {
    const text = await (await answerOf(location.pathname + location.search)).text();
    const next = new DOMParser().parseFromString(text, "text/html");
    const open = isOpen();
    const seen = [...document.querySelectorAll("main section[id], main h3")].find((e) => e.getBoundingClientRect().bottom > 0);
    const index = seen ? [...document.querySelectorAll(seen.tagName)].indexOf(seen) : -1;
    const top = seen?.getBoundingClientRect().top;
    for (const place of [".live", "main", "#specs", "#palettes"]) {
      const [former, newer] = [document.querySelector(place), next.querySelector(place)];
      if (former && newer) former.replaceWith(newer);
      else if (newer) document.body.append(newer);
    }
    document.querySelectorAll("main details").forEach((each, i) => { each.open = open[i] ?? false; });
    document.dispatchEvent(new Event("replaced"));
    const again = index < 0 ? null : document.querySelectorAll(seen.tagName)[index];
    if (again) scrollBy(0, again.getBoundingClientRect().top - top);
  }

  async function look() {
    const fault = () => live().querySelector(".fault");
    try {
      if (!document.hidden) {
        const state = await (await answerOf(live().dataset.state)).json();
        const selecting = !getSelection().isCollapsed;
        if (state.version !== live().dataset.version && !selecting) await replace();
        live().querySelectorAll("span:not(.fault)").forEach((each, i) => { each.textContent = state.lines[i] ?? ""; });
        fault().hidden = true;
      }
    } catch (error) {
      fault().textContent = "Not up to date: " + error.message;
      fault().hidden = false;
    }
    setTimeout(look, 1000 * SECONDS);
  }

  setTimeout(look, 1000 * SECONDS);
})();
