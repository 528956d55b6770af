// The board in the browser: one cursor and one zoom over all panels, keys, playing, and asking only for what is seen.
(function () {
  const NARROW_PX = 700;
  const LEAST_SPAN = 1e-6; // as in board/gestures.py
  const state = {
    view: {}, cursor: {}, theme: "light", tick: 0, // what the server last said
    x: null, // where the cursor stands, in x
    playing: false, speed: 1, last: 0, posted: 0, // playing
    count: 0, // gestures made: each is new to Dash
  };
  const digits = (x) => String(Number(x.toPrecision(9))); // as View writes it
  const setProps = (id, props) => window.dash_clientside.set_props(id, props);
  const plots = () => Array.from(document.querySelectorAll(".plot.shares-x .js-plotly-plot"));
  const there = () => document.getElementById("board") !== null;

  function gesture(what) {
    if (what.kind !== "move") begun = null;
    state.count += 1;
    setProps("board-gesture", { data: { ...what, n: state.count } });
  }

  // ---- asking for figures: only of cards on the screen; the others when they come into view -----------------------

  const asked = new Map(); // key -> what was last asked, as text
  function ask(card) {
    const data = { view: state.view, theme: state.theme, tick: state.tick, narrow: window.innerWidth < NARROW_PX };
    if (card.dataset.cursor === "yes") data.cursor = { step: state.cursor.step };
    const text = JSON.stringify(data);
    if (asked.get(card.dataset.key) === text && card.dataset.asked === "yes") return;
    asked.set(card.dataset.key, text);
    card.dataset.asked = "yes";
    setProps({ type: "panel-ask", key: card.dataset.key }, { data });
  }
  const seen = new Set();
  // Parts further down that take long to make: each has a store, told once when a reader comes near.
  const lazy = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      lazy.unobserve(entry.target);
      setProps(entry.target.dataset.store, { data: 1 });
    }
  });
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) { seen.add(entry.target); ask(entry.target); } else seen.delete(entry.target);
      }
    },
    { rootMargin: "300px" },
  );
  function watchCards() {
    for (const part of document.querySelectorAll(".lazy:not([data-watched])")) {
      part.dataset.watched = "yes";
      lazy.observe(part);
    }
    for (const card of document.querySelectorAll(".card[data-key]")) {
      if (card.dataset.watched) continue;
      card.dataset.watched = "yes";
      watcher.observe(card);
    }
    for (const card of Array.from(seen)) if (!card.isConnected) seen.delete(card);
  }

  // ---- lines over the plots: drawn beside Plotly, so that moving them costs nothing --------------------------------

  function lineOf(plot, name) {
    const box = plot.closest(".plot");
    let line = box.querySelector("." + name);
    if (!line) {
      line = document.createElement("div");
      line.className = "over-line " + name;
      box.appendChild(line);
    }
    return line;
  }
  function place(plot, name, x) {
    const line = lineOf(plot, name);
    const full = plot._fullLayout;
    const axis = full && full.xaxis;
    if (x === null || !axis || axis.visible === false) { line.style.display = "none"; return; }
    const pixel = axis.d2p(x);
    if (!(pixel >= -1 && pixel <= axis._length + 1)) { line.style.display = "none"; return; }
    line.style.display = "block";
    line.style.left = axis._offset + pixel + "px";
    line.style.top = full._size.t + "px";
    line.style.height = full._size.h + "px";
  }
  const placeAll = (name, x) => plots().forEach((plot) => place(plot, name, x));
  function xUnder(plot, event) {
    const axis = plot._fullLayout && plot._fullLayout.xaxis;
    if (!axis) return null;
    const pixel = event.clientX - plot.getBoundingClientRect().left - axis._offset;
    return pixel < 0 || pixel > axis._length ? null : axis.p2d(pixel);
  }

  // ---- each plot: zoom, click, hover -------------------------------------------------------------------------------

  function attach(plot) {
    if (plot.dataset.attached || !plot.on) return;
    plot.dataset.attached = "yes";
    plot.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"], to = change["xaxis.range[1]"];
      if (from !== undefined && to !== undefined) zoom(Number(from), Number(to));
      else if (change["xaxis.autorange"]) whole();
    });
    plot.on("plotly_doubleclick", whole);
    plot.on("plotly_afterplot", () => { place(plot, "cursor-line", state.x); legend(plot); });
    plot.addEventListener("pointerdown", (event) => {
      if (document.activeElement !== document.body) document.activeElement.blur(); // keys go to the board from now on
      down = event.target.closest(".modebar, .legend") ? null : { plot, x: event.clientX, y: event.clientY };
    }, true);
    plot.addEventListener("mousemove", (event) => placeAll("hover-line", xUnder(plot, event)));
    plot.addEventListener("mouseleave", () => placeAll("hover-line", null));
  }
  // Plotly lays a cover over the whole page while the button is down: the release is heard there, not at the plot.
  let down = null;
  window.addEventListener("pointerup", (event) => {
    const still = down && Math.hypot(event.clientX - down.x, event.clientY - down.y) < 4;
    const x = still ? xUnder(down.plot, event) : null;
    down = null;
    if (x !== null) { show(x); gesture({ kind: "cursor", x }); }
  }, true);
  // Where a zoom leads is known here: the panels need not wait for the server to say so. The gesture still tells it.
  function zoom(from, to) {
    if (!(to - from >= LEAST_SPAN)) return;
    const { window: following, ...view } = state.view;
    setProps("board-view", { data: { ...view, from: digits(from), to: digits(to) } });
    gesture({ kind: "zoom", from, to });
  }
  function whole() {
    const { window: following, from, to, ...view } = state.view;
    setProps("board-view", { data: view });
    gesture({ kind: "whole" });
  }
  function show(x) {
    state.x = x;
    placeAll("cursor-line", x);
  }

  new MutationObserver(() => {
    if (!there()) { if (state.playing) stop(); return; }
    watchCards();
    plots().forEach(attach);
  }).observe(document.documentElement, { childList: true, subtree: true });

  // ---- legends: rows of the page, which wrap where Plotly's would be cut off; a click hides a part -----------------

  function legend(plot) {
    const row = plot.closest(".card") && plot.closest(".card").querySelector(".legend-row");
    if (!row || !plot.data) return;
    const entries = new Map(); // name -> the first trace of that name
    for (const trace of plot.data) if (trace.name && trace.showlegend !== false && !entries.has(trace.name)) entries.set(trace.name, trace);
    const text = JSON.stringify([...entries].map(([name, trace]) => [name, style(trace), trace.visible]));
    if (row.dataset.text === text) return;
    row.dataset.text = text;
    row.replaceChildren(...[...entries].map(([name, trace]) => chip(plot, name, trace)));
  }
  function style(trace) {
    const line = trace.line || {}, marker = trace.marker || {};
    const pattern = trace.fillpattern || marker.pattern;
    if (pattern && pattern.shape) return { kind: "hatched", color: pattern.fgcolor };
    if (trace.fillcolor || trace.type === "bar") return { kind: "area", color: trace.fillcolor || marker.color };
    if ((trace.mode || "").includes("markers")) return { kind: marker.symbol === "x" ? "cross" : marker.symbol === "square" ? "area" : "dot", color: marker.color };
    return { kind: line.dash && line.dash !== "solid" ? "dashed" : "line", color: line.color };
  }
  function chip(plot, name, trace) {
    const button = document.createElement("button"), swatch = document.createElement("span");
    const { kind, color } = style(trace);
    swatch.className = "swatch swatch-" + kind;
    swatch.style.setProperty("--swatch", Array.isArray(color) ? color[0] : color);
    button.className = "legend-chip" + (trace.visible === "legendonly" ? " legend-chip-off" : "");
    button.type = "button";
    button.append(swatch, document.createTextNode(name));
    button.setAttribute("aria-pressed", String(trace.visible !== "legendonly"));
    button.addEventListener("click", () => {
      const places = plot.data.flatMap((other, at) => (other.name === name ? [at] : []));
      window.Plotly.restyle(plot, { visible: trace.visible === "legendonly" ? true : "legendonly" }, places);
    });
    return button;
  }

  // ---- playing -----------------------------------------------------------------------------------------------------

  function range() {
    const plot = plots().find((p) => p._fullLayout && p._fullLayout.xaxis && p._fullLayout.xaxis.visible !== false);
    return plot ? plot._fullLayout.xaxis.range.map(Number) : null;
  }
  function play() {
    const span = range();
    if (!span) return;
    if (state.x === null || state.x < span[0] || state.x > span[1]) state.x = span[0];
    state.playing = true;
    state.last = performance.now();
    button();
    requestAnimationFrame(frame);
  }
  function stop() {
    state.playing = false;
    button();
    if (state.x !== null) gesture({ kind: "cursor", x: state.x });
  }
  function button() {
    const play = document.getElementById("board-play");
    if (play) { setProps("board-play", { children: state.playing ? "Pause" : "Play" }); play.dataset.playing = state.playing; }
  }
  const STEPS_PER_S = 10; // on the axis of steps, at speed 1
  function frame(now) {
    if (!state.playing || !there()) return;
    const pace = state.view.x === "step" ? STEPS_PER_S : 1;
    show(state.x + ((now - state.last) / 1000) * state.speed * pace);
    state.last = now;
    const span = range();
    if (now - state.posted > 250) {
      state.posted = now;
      if (span && state.x > span[1] && state.view.to !== undefined) gesture({ kind: "pan_to", x: state.x });
      else if (span && state.x >= span[1]) { show(span[1]); stop(); return; }
      else gesture({ kind: "cursor", x: state.x });
    }
    requestAnimationFrame(frame);
  }

  // ---- stepping ----------------------------------------------------------------------------------------------------

  // Steps that come faster than the server answers add up: each asks for all of them, from where the first began.
  let begun = null, owed = 0, stepped = 0;
  function move(by) {
    const now = performance.now();
    if (begun === null || now - stepped > 1000) { begun = state.cursor.step === undefined ? null : state.cursor.step; owed = 0; }
    owed += by;
    stepped = now;
    gesture({ kind: "move", step: begun, by: owed });
  }

  // ---- keys --------------------------------------------------------------------------------------------------------

  function changeSpeed(by) {
    if (!document.getElementById("board-speed")) return; // a live page has no speed
    const values = [0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 100];
    const at = Math.max(0, values.indexOf(state.speed));
    const speed = values[Math.min(values.length - 1, Math.max(0, at + by))];
    state.speed = speed; // at once: a second press may come before Dash tells of the first
    setProps("board-speed", { value: String(speed) });
  }
  const typing = (target) => target.closest && target.closest("input, textarea, select, [contenteditable], [role=dialog] *");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "?") { document.getElementById("help-open").click(); event.preventDefault(); return; }
    const press = (id) => { const button = document.getElementById(id); if (button) { button.click(); event.preventDefault(); } };
    for (const page of ["tour", "inspect"]) { // pages with steps of their own
      if (!document.getElementById(page + "-on")) continue;
      if (event.key === "ArrowRight") press(page + "-on");
      else if (event.key === "ArrowLeft") press(page + "-back");
      else if (event.key === " " && !event.target.closest("button, a")) press(page + "-play");
      return;
    }
    if (!there()) return;
    const by = event.shiftKey ? 10 : 1;
    if (event.key === " ") { if (event.target.closest("button, a, [role=radio]")) event.target.blur(); state.playing ? stop() : play(); }
    else if (event.key === "ArrowRight") move(by);
    else if (event.key === "ArrowLeft") move(-by);
    else if (event.key === "[") changeSpeed(-1);
    else if (event.key === "]") changeSpeed(1);
    else return;
    event.preventDefault();
  });

  // ---- what Dash calls ---------------------------------------------------------------------------------------------

  const same = () => window.dash_clientside.no_update;
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.board = {
    // The view, the cursor, the theme or the data changed: ask for the figures on the screen, and keep the address.
    refresh: function (view, cursor, theme, tick) {
      Object.assign(state, { view: view || {}, cursor: cursor || {}, theme: theme || "light", tick });
      if (!state.playing) show(state.cursor.x === undefined ? null : state.cursor.x);
      watchCards();
      seen.forEach(ask);
      const fields = { ...state.view };
      if (fields.window) { delete fields.from; delete fields.to; } // a live view that follows: its numbers are old at once
      if (state.cursor.step !== null && state.cursor.step !== undefined) fields.step = state.cursor.step;
      const known = new URLSearchParams(window.location.search);
      for (const name of ["run", "x", "from", "to", "by", "step", "window"]) known.delete(name);
      for (const [name, value] of Object.entries(fields)) known.set(name, value);
      const query = known.toString().replaceAll("%2C", ",");
      window.history.replaceState(window.history.state, "", window.location.pathname + (query ? "?" + query : ""));
      return same();
    },
    play: function () { state.playing ? stop() : play(); return same(); },
    back: function () { move(-1); return same(); },
    on: function () { move(1); return same(); },
    whole: () => ({ kind: "whole", n: ++state.count }),
    speed: function (value) { state.speed = Number(value); return same(); },
  };
})();
